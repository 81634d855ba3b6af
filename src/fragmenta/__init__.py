"""Distributed reinforcement learning with dataflow fragments: write an algorithm once, decide where it runs later."""

__version__ = "0.1.0"

from fragmenta.algorithms import A2C, IMPALA, MAPPO, PPO, ActorCritic, Algorithm, Axis, RecurrentPPO
from fragmenta.coordinator.plan import project
from fragmenta.coordinator.trace import trace as _trace
from fragmenta.engines import EngineOptions
from fragmenta.envs import (
    Box,
    Dict,
    Discrete,
    Environment,
    EnvOptions,
    MultiDiscrete,
    Stack,
    TeamEnvironment,
    Transition,
    World,
    make,
)
from fragmenta.errors import ConfigError
from fragmenta.graph import Delivery, Fragment, Graph, Plan
from fragmenta.policies import Cluster
from fragmenta.stage import stage
from fragmenta.training.loop import Result
from fragmenta.training.periodic import EvaluationOptions
from fragmenta.training.runs import Run, open_run
from fragmenta.training.saving import SaveOptions
from fragmenta.training.train import resume, train
from fragmenta.training.verify import Verification, verify


def trace(algorithm: Algorithm, env: str | Environment) -> Graph:
    """The fragmented dataflow graph of one training iteration; `print` it to read it."""
    environment = make(env)
    algorithm.validate(environment)
    return _trace(algorithm, environment)


__all__ = [
    "A2C",
    "IMPALA",
    "MAPPO",
    "PPO",
    "ActorCritic",
    "Algorithm",
    "Axis",
    "Box",
    "Cluster",
    "ConfigError",
    "Delivery",
    "Dict",
    "Discrete",
    "EngineOptions",
    "EnvOptions",
    "Environment",
    "EvaluationOptions",
    "Fragment",
    "Graph",
    "MultiDiscrete",
    "Plan",
    "RecurrentPPO",
    "Result",
    "Run",
    "SaveOptions",
    "Stack",
    "TeamEnvironment",
    "Transition",
    "Verification",
    "World",
    "make",
    "open_run",
    "project",
    "resume",
    "stage",
    "trace",
    "train",
    "verify",
]
