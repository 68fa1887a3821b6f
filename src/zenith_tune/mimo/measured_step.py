"""What a run tells of its own steps: the seconds of passes, sums and messages, as one line of its log."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

MARK = " measured passes: "
"""Begins the line."""


@dataclass(frozen=True, slots=True)
class PassKey:
    """Name the passes that are timed together: of one stage of a module, over so many items or samples."""

    module: str
    """Either "encoder" or "llm"."""
    tp: int
    pp: int
    stage: int
    units: int
    is_backward: bool


@dataclass(frozen=True, slots=True)
class TimedPass:
    """Hold what passes took, in the middle of all of them: before the blocks, in them, and after them."""

    key: PassKey
    count: int
    first_s: float
    blocks_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class LinkTime:
    """Hold what a message or a sum of so many bytes took between so many ranks."""

    num_ranks: int
    num_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Hold what a run has measured of its steps so far.

    >>> told = MeasuredStep(passes=(), sync_s=0.002, end_s=0.01).line()
    >>> MeasuredStep.read(f"iteration 1\\n{reported}\\n").end_s
    0.01
    """

    passes: tuple[TimedPass, ...]
    sync_s: float
    """Gradients summed over replicas, once all ranks are there."""
    end_s: float
    """All that follows: checks, norm, clipping, update and agreements."""
    messages: tuple[LinkTime, ...] = ()
    """Between two ranks, each with its shape before it."""
    sums: tuple[LinkTime, ...] = ()

    def text(self) -> str:
        """Return it as JSON, in rows of numbers."""
        rows = {
            "passes": [(*astuple(each.key), each.count, *_rounded(each)) for each in self.passes],
            "end": (round(self.sync_s, 6), round(self.end_s, 6)),
            "messages": [astuple(each) for each in self.messages],
            "sums": [astuple(each) for each in self.sums],
        }
        return json.dumps(rows, separators=(",", ":"))

    def line(self) -> str:
        """Return the line that tells it."""
        return MARK + self.text()

    @classmethod
    def read(cls, log: str) -> MeasuredStep | None:
        """Return what the last such line of a log tells; None where there is none that is whole."""
        for line in reversed(log.splitlines()):
            if MARK in line and (found := cls.of(line.partition(MARK)[2])) is not None:
                return found
        return None

    @classmethod
    def of(cls, text: str) -> MeasuredStep | None:
        """Return it from its JSON; None for anything else."""
        try:
            rows = json.loads(text)
            return cls(
                passes=tuple(TimedPass(PassKey(*row[:6]), *row[6:]) for row in rows["passes"]),
                sync_s=rows["end"][0],
                end_s=rows["end"][1],
                messages=tuple(LinkTime(*row) for row in rows["messages"]),
                sums=tuple(LinkTime(*row) for row in rows["sums"]),
            )
        except (ValueError, TypeError, KeyError, IndexError):
            return None


def _rounded(each: TimedPass) -> tuple[float, float, float]:
    return round(each.first_s, 6), round(each.blocks_s, 6), round(each.last_s, 6)
