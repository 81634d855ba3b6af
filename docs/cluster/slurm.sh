#!/bin/bash
# A Ray cluster with a token on the nodes of a SLURM job, and a run on it: sbatch slurm.sh train ppo ...
# Submit it from the folder with your modules, on a file system that all nodes share, with fragmenta on the PATH.
#SBATCH --job-name=fragmenta
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_USAGE_STATS_ENABLED=0
export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=3

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
port=$((20000 + SLURM_JOB_ID % 10000))
# Ray guesses the wrong address on machines with several networks, or with none beyond the cluster.
address_of() { srun --nodes=1 --ntasks=1 --nodelist="$1" hostname --ip-address | awk '{print $1}'; }
head_ip=$(address_of "${nodes[0]}")
has="--num-cpus=$SLURM_CPUS_PER_TASK --num-gpus=${SLURM_GPUS_ON_NODE:-0}"

# --overlap, because the run itself is also a step on the first node.
srun --nodes=1 --ntasks=1 --overlap --nodelist="${nodes[0]}" \
    ray start --head --node-ip-address="$head_ip" --port=$port --include-dashboard=false $has --block &
for tries in {1..60}; do
    ray health-check --address="$head_ip:$port" > /dev/null 2>&1 && break
    sleep 1
done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" \
        ray start --address="$head_ip:$port" --node-ip-address="$(address_of "$node")" $has --block &
done
for tries in {1..60}; do
    alive=$(python -c "from fragmenta.engines.ray_access import slots; print(len(slots('$head_ip:$port')))") || true
    [ "$alive" = "${#nodes[@]}" ] && break
    sleep 1
done
if [ "$alive" != "${#nodes[@]}" ]; then
    echo "only ${alive:-0} of ${#nodes[@]} nodes joined the Ray cluster: see the output of ray start above" >&2
    kill $(jobs -p) 2> /dev/null || true
    exit 1
fi

# A minute before the time limit SLURM sends TERM to this script. Passed on, the run saves a checkpoint and prints how
# to resume.
fragmenta "$@" --engine ray --address "$head_ip:$port" &
run=$!
trap 'kill -TERM $run' TERM
status=0
wait $run || status=$?
if kill -0 $run 2> /dev/null; then wait $run || status=$?; fi
kill $(jobs -p) 2> /dev/null || true
exit $status
