"""LayoutBench: measured landscapes of training layouts, and one protocol to judge tuners on them."""

from layoutbench.landscape import Landscape, Layout, Run, load_landscapes, read_landscape, write_landscape
from layoutbench.protocol import Params, Problem, Result, Tuner

__all__ = [
    "Landscape",
    "Layout",
    "Params",
    "Problem",
    "Result",
    "Run",
    "Tuner",
    "load_landscapes",
    "read_landscape",
    "write_landscape",
]
