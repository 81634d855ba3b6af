"""MinAtar, and Atari."""

from fragmenta.zoo.recipe import Recipe
from fragmenta.zoo.references import baselines, gymnax

PPO = "its PPO"

GAMES = (
    Recipe(
        "pqn-minatar-breakout",
        "pqn",
        "gymnax:Breakout-MinAtar",
        10_000_000,
        24.0,
        gymnax(28, 10_000_000, PPO),
        (29.0, 26.3, 32.8),
        {"num_envs": 128},
    ),
    Recipe(
        "dqn-minatar-breakout",
        "dqn",
        "gymnax:Breakout-MinAtar",
        2_000_000,
        16.0,
        gymnax(28, 10_000_000, PPO),
        (20.8, 21.5, 17.5),
        {"num_envs": 32, "batch_size": 128, "buffer_size": 100_000, "hidden": (256, 256)},
    ),
    Recipe(
        "pqn-minatar-space-invaders",
        "pqn",
        "gymnax:SpaceInvaders-MinAtar",
        10_000_000,
        100.0,
        gymnax(131, 10_000_000, PPO),
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "pqn-minatar-asterix",
        "pqn",
        "gymnax:Asterix-MinAtar",
        10_000_000,
        12.0,
        gymnax(15, 10_000_000, PPO),
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "pqn-minatar-freeway",
        "pqn",
        "gymnax:Freeway-MinAtar",
        10_000_000,
        50.0,
        gymnax(58, 10_000_000, PPO),
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "ppo-pong",
        "ppo",
        "ale:pong",
        8_000_000,
        18.0,
        baselines(21, 10_000_000, "PongNoFrameskip-v4; ours: one seed, after 4 million steps"),
        (20.2,),
        {
            "num_envs": 32,
            "horizon": 128,
            "epochs": 4,
            "minibatches": 8,
            "learning_rate": 5e-4,
            "clip": 0.1,
            "clip_value": True,
            "hidden": (),
        },
    ),
)
