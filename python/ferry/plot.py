"""Draws pictures of measurements: ferry.plot.draw(["sweep2.json", "sweep8.json"], "out.svg"). Needs matplotlib."""

from .bench.plot import ResultsError, draw

__all__ = ["ResultsError", "draw"]
