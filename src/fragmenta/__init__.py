"""Distributed reinforcement learning with dataflow fragments: write an algorithm once, decide where it runs later."""

from typing import Any

from fragmenta.algorithms import (
    A2C,
    DDPG,
    DQN,
    IMPALA,
    IPPO,
    LSTMPPO,
    MADDPG,
    MAPPO,
    PPO,
    PQN,
    QMIX,
    R2D2,
    REINFORCE,
    SAC,
    TD3,
    VDN,
    ActorCritic,
    Algorithm,
    Axis,
    DiscreteSAC,
    FastTD3,
    RecurrentPPO,
    TransformerPPO,
)
from fragmenta.algorithms.named import AlgorithmLike, algorithm_from
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
from fragmenta.runs.opening import Run, load
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.sinks import TrackingOptions
from fragmenta.search.sweep import JobOptions, Sweep, sweep
from fragmenta.search.trials import Trial
from fragmenta.stage import stage
from fragmenta.tracing.trace import trace as _trace
from fragmenta.training.callbacks import Moment
from fragmenta.training.options import RunOptions
from fragmenta.training.result import Result
from fragmenta.training.train import resume, train
from fragmenta.version import __version__ as __version__


def trace(algorithm: AlgorithmLike, env: Any) -> Graph:
    """The fragmented dataflow graph of one training iteration; `print` it to read it."""
    environment, loop = make(env), algorithm_from(algorithm, {})
    loop.validate(environment)
    return _trace(loop, environment)


__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "IMPALA",
    "IPPO",
    "LSTMPPO",
    "MADDPG",
    "MAPPO",
    "PPO",
    "PQN",
    "QMIX",
    "R2D2",
    "REINFORCE",
    "SAC",
    "TD3",
    "VDN",
    "ActorCritic",
    "Algorithm",
    "Axis",
    "Box",
    "Cluster",
    "ConfigError",
    "Delivery",
    "Dict",
    "Discrete",
    "DiscreteSAC",
    "EngineOptions",
    "EnvOptions",
    "Environment",
    "EvaluationOptions",
    "FastTD3",
    "Fragment",
    "Graph",
    "JobOptions",
    "Moment",
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
    "TrackingOptions",
    "TransformerPPO",
    "Transition",
    "Trial",
    "Verification",
    "World",
    "load",
    "make",
    "project",
    "resume",
    "stage",
    "sweep",
    "trace",
    "train",
    "verify",
]
