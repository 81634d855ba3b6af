"""Engines by name."""

from fragmenta.engines.local import LocalEngine

ENGINES = {"local": LocalEngine}

__all__ = ["ENGINES", "LocalEngine"]
