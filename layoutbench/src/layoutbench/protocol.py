"""What a tuner is: it is given a problem and a seed, is asked for layouts, and learns how each one ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from layoutbench.landscape import Landscape

Params = Mapping[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """All that a tuner may know before its first trial."""

    model: Mapping[str, Any]
    job: Mapping[str, Any]
    cluster: Mapping[str, Any]
    axes: Mapping[str, Sequence[int | str]]
    layouts: Sequence[Params]
    """Every layout that may be asked for, in the order of the axes."""
    others: Sequence[Landscape] = ()
    """Measured landscapes of other models or clusters, to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of one trial; `step_s` is None unless the outcome is "ok"."""

    outcome: str
    step_s: float | None = None
    peak_memory_bytes: float | None = None
    cost_s: float = 0.0


class Tuner(Protocol):
    """Choose layouts, one after another; the constructor takes a Problem and a seed."""

    def ask(self) -> Params | None: ...  # None: the tuner stops
    def tell(self, params: Params, result: Result) -> None: ...
