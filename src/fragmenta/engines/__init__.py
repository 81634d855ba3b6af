"""Engines start the workers of a plan and connect them: in threads, in processes, or on a Ray cluster."""

from fragmenta.engines.base import Engine, EngineOptions, Placed, Report, Setup
from fragmenta.engines.kinds import ENGINES, EngineKind, engine_named
from fragmenta.engines.local import LocalEngine

__all__ = [
    "ENGINES",
    "Engine",
    "EngineKind",
    "EngineOptions",
    "LocalEngine",
    "Placed",
    "Report",
    "Setup",
    "engine_named",
]
