"""Classic control, a task that needs memory, and one in which most actions are illegal."""

from fragmenta.zoo.recipe import Recipe

HERE = "measured here"
CARTPOLE = "Gymnasium: solved at 475"
ACROBOT = "Gymnasium: solved at -100"
MOUNTAIN_CAR = "Gymnasium: solved at -110"
MEMORY = "the most possible is 1; dqn, without memory, reaches -0.06 here"
MASKS = "the most possible is 6.22; one illegal action in 100 episodes costs 1"

CLASSIC = (
    Recipe("ppo-cartpole", "ppo", "CartPole-v1", 500_000, 475.0, CARTPOLE, (500, 500, 500, 500, 500)),
    Recipe("ppo-gru-cartpole", "ppo_gru", "CartPole-v1", 500_000, 475.0, CARTPOLE, (495, 500, 500, 500, 500)),
    Recipe("a2c-cartpole", "a2c", "CartPole-v1", 500_000, 475.0, CARTPOLE, (498, 500, 500, 500, 500)),
    Recipe("impala-cartpole", "impala", "CartPole-v1", 500_000, 475.0, CARTPOLE, (500, 500, 500, 500, 500)),
    Recipe("dqn-cartpole", "dqn", "CartPole-v1", 500_000, 475.0, CARTPOLE, (500, 500, 497, 493, 499)),
    Recipe("pqn-cartpole", "pqn", "CartPole-v1", 500_000, 475.0, CARTPOLE, (500, 489, 500, 500, 500)),
    Recipe(
        "sac-discrete-cartpole",
        "sac_discrete",
        "CartPole-v1",
        500_000,
        475.0,
        CARTPOLE,
        (500, 500, 500),
    ),
    Recipe(
        "reinforce-cartpole",
        "reinforce",
        "CartPole-v1",
        500_000,
        440.0,
        CARTPOLE,
        (481, 455, 496, 466, 490),
    ),
    Recipe(
        "ppo-pendulum",
        "ppo",
        "Pendulum-v1",
        500_000,
        -230.0,
        f"{HERE}: lowest and highest of 16 seeds",
        (-215, -151),
        {"gamma": 0.9, "epochs": 10, "num_envs": 8},
    ),
    Recipe("sac-pendulum", "sac", "Pendulum-v1", 50_000, -175.0, HERE, (-150, -145, -145, -143, -157)),
    Recipe("td3-pendulum", "td3", "Pendulum-v1", 50_000, -185.0, HERE, (-159, -154, -150, -148, -169)),
    Recipe("ddpg-pendulum", "ddpg", "Pendulum-v1", 50_000, -190.0, HERE, (-162, -154, -149, -147, -172)),
    Recipe("ppo-acrobot", "ppo", "Acrobot-v1", 500_000, -100.0, ACROBOT, (-81.6, -81.9, -86.8)),
    Recipe("dqn-acrobot", "dqn", "Acrobot-v1", 500_000, -100.0, ACROBOT),
    Recipe(
        "ppo-mountaincar",
        "ppo",
        "MountainCar-v0",
        1_000_000,
        -110.0,
        MOUNTAIN_CAR,
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
    Recipe("r2d2-memory", "r2d2", "gymnax:MemoryChain-bsuite", 150_000, 0.85, MEMORY, (0.98, 0.96, 0.98)),
    Recipe("ppo-lstm-memory", "ppo_lstm", "gymnax:MemoryChain-bsuite", 300_000, 0.95, MEMORY, (1.0, 1.0, 1.0)),
    Recipe(
        "ppo-transformer-memory",
        "ppo_transformer",
        "gymnax:MemoryChain-bsuite",
        300_000,
        0.95,
        MEMORY,
        (1.0, 1.0, 1.0),
    ),
    Recipe("ppo-masks", "ppo", "ProbeMask", 100_000, 5.8, MASKS, (6.35, 6.24, 6.19)),
    Recipe("dqn-masks", "dqn", "ProbeMask", 100_000, 5.8, MASKS, (6.04, 6.18, 6.11), {"gamma": 0.5}),
)
