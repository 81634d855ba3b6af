"""The public API."""

import inspect

import fragmenta


def test_exported_names() -> None:
    assert sorted(fragmenta.__all__) == [
        "A2C", "ActorCritic", "Algorithm", "Axis", "Box", "Cluster", "ConfigError", "DDPG", "DQN", "Delivery", "Dict",
        "Discrete", "DiscreteSAC", "EngineOptions", "EnvOptions", "Environment", "EvaluationOptions", "FastTD3",
        "Fragment", "Graph", "IMPALA", "IPPO", "JobOptions", "LSTMPPO", "MADDPG", "MAPPO", "Moment", "MultiDiscrete",
        "PPO", "PQN", "Plan", "QMIX", "R2D2", "REINFORCE", "RecurrentPPO", "Result", "Run", "RunOptions", "SAC",
        "SaveOptions", "Stack", "Sweep", "TD3", "TeamEnvironment", "TrackingOptions", "TransformerPPO", "Transition",
        "Trial", "VDN", "Verification", "World", "load", "make", "project", "resume", "stage", "sweep", "trace",
        "train", "verify",
    ]  # fmt: skip
    for name in fragmenta.__all__:
        assert inspect.getdoc(getattr(fragmenta, name)), f"{name} has no docstring"


def test_train_takes_the_documented_parameters() -> None:
    parameters = list(inspect.signature(fragmenta.train).parameters)
    assert parameters[:7] == ["algorithm", "env", "policy", "engine", "total_steps", "seed", "cluster"]


def test_ppo_is_one_page() -> None:
    source = inspect.getsource(inspect.getmodule(fragmenta.PPO))  # pyright: ignore
    assert len(source.splitlines()) <= 200


def test_ppo_has_the_fields_that_are_its_flags() -> None:
    fields = set(fragmenta.PPO.__dataclass_fields__)
    assert {
        "num_envs", "horizon", "epochs", "minibatches", "learning_rate", "gamma", "gae_lambda", "clip",
        "entropy_cost", "value_cost", "max_grad_norm", "hidden",
    } <= fields  # fmt: skip
