"""The colours of all pictures."""

COLOURS = ("#2a6fdb", "#e07a1f", "#2b9a66", "#b5459c", "#8a6d1d", "#d23f4b", "#2596a8", "#6b5bd0")
INK, MUTED, GRID = "#1c2330", "#6a7383", "#e3e7ee"
SOFT, EDGE = "#eef1f6", "#c9d0db"
"""Filling and outline of boxes."""
MARK = "#cc0000"
