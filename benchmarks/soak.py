"""No hang: many short runs under all distribution policies, three processes at a time on the same cores.

Every run must end by itself with the same parameters as all others of its size. `make bench WHAT=soak` does 500.
"""

import json
import os
import subprocess
import sys
import time

RUNS, AT_ONCE, PATIENCE = 500, 3, 120.0
DEVICES = 5


def work(index: int, count: int) -> None:
    """Run `count` short trainings in this process, one JSON line each."""
    import fragmenta

    cases = [
        (policy, replicas, merge)
        for policy in ("fused", "single_learner_coarse", "single_learner_fine")
        for replicas in (1, 2, 4)
        for merge in (True, False)
    ]
    algorithm = fragmenta.PPO(num_envs=8, horizon=16, hidden=(16,), total_steps=8 * 16 * 8)
    for run in range(count):
        policy, replicas, merge = cases[(run * AT_ONCE + index) % len(cases)]
        cluster = fragmenta.Cluster(tuple(f"cpu:{i}" for i in range(1 if run % 3 == 0 else DEVICES)), replicas)
        result = fragmenta.train(
            algorithm, "CartPole-v1", policy, cluster=cluster, options=fragmenta.RunOptions(merge=merge, deadline=60.0)
        )
        print(json.dumps({"policy": policy, "return": result.summary["return_mean"]}), flush=True)


def main() -> int:
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={DEVICES}"
    begin = time.monotonic()
    shares = [RUNS // AT_ONCE + (i < RUNS % AT_ONCE) for i in range(AT_ONCE)]
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(i), str(share)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags},
        )
        for i, share in enumerate(shares)
    ]
    finished, last, returns = [0] * AT_ONCE, [begin] * AT_ONCE, set()
    for worker in workers:
        assert worker.stdout is not None
        os.set_blocking(worker.stdout.fileno(), False)
    stuck = False
    while any(worker.poll() is None for worker in workers) and not stuck:
        time.sleep(0.2)
        for i, worker in enumerate(workers):
            for line in worker.stdout or ():
                finished[i], last[i] = finished[i] + 1, time.monotonic()
                returns.add(round(json.loads(line)["return"], 3))
            stuck = stuck or (worker.poll() is None and time.monotonic() - last[i] > PATIENCE)
    for i, worker in enumerate(workers):
        finished[i] += sum(1 for _ in worker.stdout or ())
        if worker.poll() is None:
            worker.kill()
    codes = [worker.wait() for worker in workers]
    seconds = time.monotonic() - begin
    print(
        f"{sum(finished)} of {RUNS} runs ended in {seconds:.0f} s, exit codes {codes}, mean returns {sorted(returns)}"
    )
    return 0 if sum(finished) == RUNS and not any(codes) and not stuck else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(int(sys.argv[1]), int(sys.argv[2]))
    else:
        sys.exit(main())
