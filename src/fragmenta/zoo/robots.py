"""MuJoCo through Gymnasium and MuJoCo Playground, and Brax."""

from typing import Any

from fragmenta.zoo.recipe import Recipe, Reference
from fragmenta.zoo.references import cleanrl

CLEANRL_PPO: dict[str, Any] = {
    "num_envs": 8,
    "horizon": 256,
    "minibatches": 32,
    "epochs": 10,
    "learning_rate": 3e-4,
    "entropy_cost": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
}
"""The settings of CleanRL, with as many steps per iteration, but of 8 environments."""
ONE_UPDATE_PER_STEP: dict[str, Any] = {"updates": 8, "learning_rate": 3e-4, "learning_starts": 10_000}
"""Of 8 environments, as in the papers of SAC and TD3; the defaults make half as many."""
BRAX_PPO: dict[str, Any] = {
    "num_envs": 2048,
    "horizon": 16,
    "minibatches": 16,
    "epochs": 4,
    "gamma": 0.97,
    "learning_rate": 3e-4,
    "hidden": (256, 256),
    "normalize_observations": True,
    "normalize_rewards": True,
}
FAST_TD3: dict[str, Any] = {
    "n_step": 3,
    "value_range": (-500.0, 500.0),
    "exploration_noise": 0.1,
    "target_noise": 0.1,
}
"""The settings that FastTD3 has for this environment, which is an example of the DeepMind Control Suite there."""
CHEETAH_RUN = Reference(
    "DeepMind Control Suite",
    "https://github.com/google-deepmind/dm_control",
    1000.0,
    note="the most possible; a goal",
)


def _brax(note: str = "") -> Reference:
    url = "https://github.com/google/brax/blob/main/notebooks/training.ipynb"
    return Reference("Brax", url, 8000, 50_000_000, f"the upper end of the axis that its notebook draws; a goal{note}")


def _mujoco(
    name: str,
    algorithm: str,
    env: str,
    expected: float,
    published: tuple[float, float],
    measured: tuple[float, ...] = (),
) -> Recipe:
    is_ppo = algorithm == "ppo"
    settings, version = (CLEANRL_PPO, "v4") if is_ppo else (ONE_UPDATE_PER_STEP, "v2")
    reference = cleanrl(algorithm, *published, 1_000_000, f"on {version}")
    return Recipe(name, algorithm, f"gymnasium:{env}", 1_000_000, expected, reference, measured, settings)


ROBOTS = (
    _mujoco("ppo-halfcheetah", "ppo", "HalfCheetah-v5", 1440.0, (1443, 46), (4709, 2996, 4178)),
    _mujoco("ppo-hopper", "ppo", "Hopper-v5", 2110.0, (2383, 272)),
    _mujoco("ppo-walker2d", "ppo", "Walker2d-v5", 1710.0, (2288, 572)),
    _mujoco("sac-halfcheetah", "sac", "HalfCheetah-v5", 8210.0, (9635, 1424)),
    _mujoco("sac-hopper", "sac", "Hopper-v5", 1960.0, (2310, 343)),
    _mujoco("sac-walker2d", "sac", "Walker2d-v5", 2680.0, (3591, 911)),
    _mujoco("td3-halfcheetah", "td3", "HalfCheetah-v5", 7940.0, (9018, 1078)),
    _mujoco("td3-hopper", "td3", "Hopper-v5", 3150.0, (3392, 232)),
    _mujoco("td3-walker2d", "td3", "Walker2d-v5", 3030.0, (4246, 1211)),
    _mujoco("ddpg-halfcheetah", "ddpg", "HalfCheetah-v5", 8577.0, (10211, 196)),
    Recipe(
        "ppo-brax-ant",
        "ppo",
        "brax:ant",
        50_000_000,
        4000.0,
        _brax("; ours: one seed, after 24 million steps"),
        (4057,),
        BRAX_PPO,
    ),
    Recipe("ppo-brax-halfcheetah", "ppo", "brax:halfcheetah", 50_000_000, 4000.0, _brax(), (), BRAX_PPO),
    Recipe(
        "fast-td3-cheetah-run",
        "fast_td3",
        "playground:CheetahRun",
        100_000_000,
        700.0,
        CHEETAH_RUN,
        hyper_parameters=FAST_TD3,
    ),
)
