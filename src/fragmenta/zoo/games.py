"""MinAtar, and Atari."""

from fragmenta.zoo.recipe import Recipe

BLINES = "PPO of gymnax-blines reaches"

GAMES = (
    Recipe(
        "pqn-minatar-breakout",
        "pqn",
        "gymnax:Breakout-MinAtar",
        10_000_000,
        24.0,
        f"{BLINES} 28",
        (29.0, 26.3, 32.8),
        {"num_envs": 128},
    ),
    Recipe(
        "dqn-minatar-breakout",
        "dqn",
        "gymnax:Breakout-MinAtar",
        2_000_000,
        16.0,
        f"{BLINES} 28",
        (20.8, 21.5, 17.5),
        {"num_envs": 32, "batch_size": 128, "buffer_size": 100_000, "hidden": (256, 256)},
    ),
    Recipe(
        "pqn-minatar-space-invaders",
        "pqn",
        "gymnax:SpaceInvaders-MinAtar",
        10_000_000,
        100.0,
        f"{BLINES} 131",
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "pqn-minatar-asterix",
        "pqn",
        "gymnax:Asterix-MinAtar",
        10_000_000,
        12.0,
        f"{BLINES} 15",
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "pqn-minatar-freeway",
        "pqn",
        "gymnax:Freeway-MinAtar",
        10_000_000,
        50.0,
        f"{BLINES} 58",
        hyper_parameters={"num_envs": 128},
    ),
    Recipe(
        "ppo-pong",
        "ppo",
        "ale:pong",
        8_000_000,
        18.0,
        "measured here: one seed, after 4 of the 8 million steps; the most possible is 21",
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
