"""Profiling: timelines that workers record, and measurements derived from them."""
