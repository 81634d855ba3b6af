"""The configurations whose predicted and measured speeds `planner.py` compares: on two cores, and on a GPU."""

from typing import Any

COSTLY, COSTLY_HOST = "planner_envs:CostlyPendulum", "planner_envs:CostlyEnv"
Configuration = tuple[str, str, dict[str, Any]]
CPU: tuple[Configuration, ...] = (
    ("ppo", "CartPole-v1", {"num_envs": 8}),
    ("ppo", "CartPole-v1", {"num_envs": 64}),
    ("ppo", "CartPole-v1", {"num_envs": 2048}),
    ("ppo", "CartPole-v1", {"num_envs": 64, "hidden": (256, 256)}),
    ("ppo", "CartPole-v1", {"num_envs": 512, "hidden": (16, 16)}),
    ("ppo", "Pendulum-v1", {"num_envs": 64}),
    ("ppo", "Acrobot-v1", {"num_envs": 256}),
    ("ppo", "MountainCar-v0", {"num_envs": 32, "hidden": (512, 512)}),
    ("ppo", "gymnax:Breakout-MinAtar", {"num_envs": 64}),
    ("ppo", COSTLY, {"num_envs": 16}),
    ("ppo", COSTLY, {"num_envs": 128}),
    ("a2c", "CartPole-v1", {"num_envs": 8}),
    ("a2c", "CartPole-v1", {"num_envs": 256}),
    ("impala", "Acrobot-v1", {"num_envs": 64}),
    ("reinforce", "CartPole-v1", {"num_envs": 64}),
    ("ppo_gru", "CartPole-v1", {"num_envs": 32}),
    ("mappo", "jaxmarl:simple_spread", {"num_envs": 32}),
    ("pqn", "CartPole-v1", {"num_envs": 128}),
    ("dqn", "CartPole-v1", {}),
    ("dqn", "CartPole-v1", {"prioritized": True, "distribution": "c51"}),
    ("dqn", "Acrobot-v1", {"num_envs": 32, "batch_size": 256, "hidden": (256, 256)}),
    ("sac", "Pendulum-v1", {}),
    ("td3", "Pendulum-v1", {"num_envs": 16, "hidden": (64, 64)}),
    ("sac_discrete", "CartPole-v1", {}),
    ("vdn", "jaxmarl:simple_spread", {}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 8}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 32}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 128}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 32, "hidden": (256, 256)}),
    ("ppo", "gymnasium:HalfCheetah-v5", {"num_envs": 8}),
    ("ppo", "gymnasium:HalfCheetah-v5", {"num_envs": 64}),
    ("a2c", "gymnasium:Acrobot-v1", {"num_envs": 32}),
    ("impala", "gymnasium:CartPole-v1", {"num_envs": 16}),
    ("ppo_gru", "gymnasium:Pendulum-v1", {"num_envs": 16}),
    ("dqn", "gymnasium:CartPole-v1", {"num_envs": 8}),
    ("sac", "gymnasium:Pendulum-v1", {"num_envs": 8}),
    ("ppo", COSTLY_HOST, {"num_envs": 8}),
    ("ppo", COSTLY_HOST, {"num_envs": 64}),
    ("dqn", COSTLY_HOST, {"num_envs": 16}),
)


GPU: tuple[Configuration, ...] = (
    ("ppo", "CartPole-v1", {"num_envs": 64}),
    ("ppo", "CartPole-v1", {"num_envs": 16384}),
    ("ppo", "CartPole-v1", {"num_envs": 2048, "hidden": (256, 256)}),
    ("ppo", "Pendulum-v1", {"num_envs": 4096}),
    ("ppo", "Acrobot-v1", {"num_envs": 1024, "hidden": (16, 16)}),
    ("ppo", COSTLY, {"num_envs": 256}),
    ("ppo", "gymnax:Breakout-MinAtar", {"num_envs": 1024}),
    ("a2c", "CartPole-v1", {"num_envs": 8192}),
    ("impala", "Acrobot-v1", {"num_envs": 512}),
    ("reinforce", "CartPole-v1", {"num_envs": 1024}),
    ("dqn", "CartPole-v1", {}),
    ("dqn", "Acrobot-v1", {"num_envs": 256, "batch_size": 1024, "hidden": (256, 256)}),
    ("sac", "Pendulum-v1", {"num_envs": 64}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 8}),
    ("ppo", "gymnasium:CartPole-v1", {"num_envs": 64}),
    ("a2c", "gymnasium:Acrobot-v1", {"num_envs": 32}),
    ("dqn", "gymnasium:CartPole-v1", {"num_envs": 16}),
    ("ppo", COSTLY_HOST, {"num_envs": 64}),
)
GRIDS = {"cpu": CPU, "gpu": GPU}


def is_apart(number: int) -> bool:
    """Whether a configuration is kept apart: every third."""
    return number % 3 == 2
