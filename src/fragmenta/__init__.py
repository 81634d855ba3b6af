"""Distributed reinforcement learning with dataflow fragments: write an algorithm once, decide where it runs later."""

from fragmenta.algorithms import A2C, IMPALA, MAPPO, PPO, ActorCritic, Algorithm, Axis, RecurrentPPO
from fragmenta.checks.verify import Verification, verify
from fragmenta.coordinator.plan import project
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
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.graph import Delivery, Fragment, Graph, Plan
from fragmenta.policies import Cluster
from fragmenta.runs.opening import Run, open_run
from fragmenta.runs.saving import SaveOptions
from fragmenta.search.sweep import Sweep, sweep
from fragmenta.search.trials import Trial
from fragmenta.stage import stage
from fragmenta.tracing.trace import trace as _trace
from fragmenta.training.loop import Result
from fragmenta.training.options import RunOptions
from fragmenta.training.train import resume, train
from fragmenta.version import __version__ as __version__


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
    "RunOptions",
    "SaveOptions",
    "Stack",
    "Sweep",
    "TeamEnvironment",
    "Transition",
    "Trial",
    "Verification",
    "World",
    "make",
    "open_run",
    "project",
    "resume",
    "stage",
    "sweep",
    "trace",
    "train",
    "verify",
]
