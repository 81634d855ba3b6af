"""Engines start the workers of a plan and connect them: in threads, in processes, or on a Ray cluster."""

from fragmenta.engines.base import Engine, EngineOptions, IterationReport, ProcessLocation, Setup
from fragmenta.engines.kinds import ENGINES, EngineKind, engine_named
from fragmenta.engines.local import LocalEngine

__all__ = [
    "ENGINES",
    "Engine",
    "EngineKind",
    "EngineOptions",
    "IterationReport",
    "LocalEngine",
    "ProcessLocation",
    "Setup",
    "engine_named",
]
