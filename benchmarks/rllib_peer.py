"""RLlib's side of `environments.py`: environment steps per second of its PPO in steady state, new API stack."""

import argparse
import os
import tempfile
import time

# Ray reads these on import. The first makes Ray listen on the loopback address only, which it would otherwise replace
# by an address that other machines can reach.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from sides import BATCH, HORIZON, MINIBATCHES, NUM_ENVS, answer, steady_rate


def config(env: str, runners: int) -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=NUM_ENVS // max(1, runners),
            rollout_fragment_length=HORIZON,
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=BATCH, minibatch_size=BATCH // MINIBATCHES, num_epochs=4)
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runners", type=int, default=0)
    options = parser.parse_args()
    # One more than there are cores: Ray reserves one for the learner process, and two runners must start beside it.
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.gettempdir(),
        log_to_driver=False,
        configure_logging=False,
    )
    torch.set_num_threads(options.threads)
    algorithm = config(options.env, options.runners).build_algo()
    marks = [(time.perf_counter(), 0)]
    while len(marks) < 4 or marks[-1][0] - marks[1][0] < options.seconds:
        result = algorithm.train()
        marks.append((time.perf_counter(), int(result["num_env_steps_sampled_lifetime"])))
    algorithm.stop()
    ray.shutdown()
    answer(steady_rate(marks))


if __name__ == "__main__":
    main()
