"""Classic control, a task that needs memory, and one in which most actions are illegal."""

from typing import Any

from fragmenta.zoo.recipe import Recipe, Reference
from fragmenta.zoo.references import CARTPOLE_SOLVED, baselines, cleanrl, gymnax, rllib

CARTPOLE, PENDULUM, MEMORY = "CartPole-v1", "Pendulum-v1", "gymnax:MemoryChain-bsuite"

CLEANRL_DQN = cleanrl("dqn", 488.7, 16.1, 500_000)
RLLIB_DQN = rllib("dqn/cartpole_dqn.py", 450, 200_000, "double, dueling, n-step, prioritised")
NO_MEMORY = gymnax(0.1, 150_000, "its PPO, without a memory; 1 is the most, 0 is by chance")

SWITCHES: dict[str, tuple[Reference, tuple[float, ...], dict[str, Any]]] = {
    "original": (CLEANRL_DQN, (495.9, 498.6, 500), {"double": False, "n_step": 1}),
    "n-step": (CLEANRL_DQN, (500, 500, 498.2), {"double": False, "n_step": 3}),
    "dueling": (RLLIB_DQN, (500, 495.8, 500), {"dueling": True}),
    "prioritized": (RLLIB_DQN, (500, 500, 495.9), {"prioritized": True}),
    "c51": (cleanrl("c51", 481.2, 20.5, 500_000), (500, 500, 500), {"distribution": "c51"}),
    "quantile": (baselines(500, 50_000, "QR-DQN"), (495.9, 500, 500), {"distribution": "quantile"}),
    "noisy": (CARTPOLE_SOLVED, (500, 500, 500), {"noisy": True}),
    "rainbow": (
        RLLIB_DQN,
        (500, 500, 500),
        {"dueling": True, "prioritized": True, "distribution": "c51", "noisy": True},
    ),
}
"""What others reached, what we did, and the switches of DQN. Its defaults are double with returns over three steps."""


def _cartpole(algorithm: str, reference: Reference, measured: tuple[float, ...], expected: float = 475.0) -> Recipe:
    name = f"{algorithm.replace('_', '-')}-cartpole"
    return Recipe(name, algorithm, CARTPOLE, 500_000, expected, reference, measured)


MASKS = Reference(
    "ProbeMask", "recipes.md#forbid-actions", 6.22, note="the most possible, on average; an illegal action costs 100"
)

CLASSIC = (
    _cartpole("ppo", cleanrl("ppo", 490.0, 6.1, 500_000), (500, 500, 500, 500, 500)),
    _cartpole("ppo_gru", cleanrl("ppo", 490.0, 6.1, 500_000, "without a memory"), (495, 500, 500, 500, 500)),
    _cartpole("a2c", baselines(500, 500_000), (498, 500, 500, 500, 500)),
    _cartpole("impala", rllib("impala/cartpole_impala.py", 450, 2_000_000), (500, 500, 500, 500, 500)),
    _cartpole("reinforce", CARTPOLE_SOLVED, (481, 455, 496, 466, 490), expected=440.0),
    _cartpole("dqn", CLEANRL_DQN, (500, 500, 497, 493, 499)),
    *(
        Recipe(
            f"dqn-{name}-cartpole",
            "dqn",
            CARTPOLE,
            500_000,
            min(475.0, reference.figure),
            reference,
            measured,
            switches,
        )
        for name, (reference, measured, switches) in SWITCHES.items()
    ),
    _cartpole("pqn", CARTPOLE_SOLVED, (500, 489, 500, 500, 500)),
    _cartpole("sac_discrete", rllib("sac/cartpole-sac.yaml", 150, 100_000), (500, 500, 500)),
    Recipe(
        "ppo-pendulum",
        "ppo",
        PENDULUM,
        500_000,
        -230.0,
        baselines(-172, 100_000, "our -215 and -151 are the lowest and highest of 16 seeds"),
        (-215, -151),
        {"gamma": 0.9, "epochs": 10, "num_envs": 8},
    ),
    Recipe("sac-pendulum", "sac", PENDULUM, 50_000, -175.0, baselines(-157, 20_000), (-150, -145, -145, -143, -157)),
    Recipe("td3-pendulum", "td3", PENDULUM, 50_000, -185.0, baselines(-152, 20_000), (-159, -154, -150, -148, -169)),
    Recipe("ddpg-pendulum", "ddpg", PENDULUM, 50_000, -190.0, baselines(-152, 20_000), (-162, -154, -149, -147, -172)),
    Recipe(
        "ppo-acrobot",
        "ppo",
        "Acrobot-v1",
        500_000,
        -100.0,
        cleanrl("ppo", -86.4, 1.3, 500_000),
        (-81.6, -81.9, -86.8),
    ),
    Recipe(
        "dqn-acrobot",
        "dqn",
        "Acrobot-v1",
        500_000,
        -100.0,
        cleanrl("dqn", -91.5, 7.2, 500_000),
        (-86.0, -92.2, -89.9),
    ),
    Recipe(
        "ppo-mountaincar",
        "ppo",
        "MountainCar-v0",
        1_000_000,
        -110.0,
        baselines(-110, 1_000_000),
        (-96.5, -98.9, -99.8),
        {
            "num_envs": 16,
            "horizon": 16,
            "gae_lambda": 0.98,
            "entropy_cost": 0.0,
            "normalize_observations": True,
            "normalize_rewards": True,
        },
    ),
    Recipe("r2d2-memory", "r2d2", MEMORY, 150_000, 0.85, NO_MEMORY, (0.98, 0.96, 0.98)),
    Recipe("ppo-gru-memory", "ppo_gru", MEMORY, 300_000, 0.95, NO_MEMORY, (1.0, 1.0, 1.0)),
    Recipe("ppo-lstm-memory", "ppo_lstm", MEMORY, 300_000, 0.95, NO_MEMORY, (1.0, 1.0, 1.0)),
    Recipe("ppo-transformer-memory", "ppo_transformer", MEMORY, 300_000, 0.95, NO_MEMORY, (1.0, 1.0, 1.0)),
    Recipe("ppo-masks", "ppo", "ProbeMask", 100_000, 5.8, MASKS, (6.35, 6.24, 6.19)),
    Recipe("dqn-masks", "dqn", "ProbeMask", 100_000, 5.8, MASKS, (6.04, 6.18, 6.11), {"gamma": 0.5}),
)
