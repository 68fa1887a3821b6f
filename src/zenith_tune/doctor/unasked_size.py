"""A parallel size that the framework took because the run's file leaves it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zenith_tune.doctor.advice import Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.planning.changes import changes

UNASKED = "unasked_size"


def unasked_size(case: Case) -> Iterator[Advice]:
    """Yield what saying the size brings, whatever its sign: the run is not the one that was meant."""
    for unasked in case.origin.unasked:
        change: dict[str, Any] = {unasked.name: unasked.meant}
        for meant in case.legal([replace(case.layout, **change)]):
            if case.fits(meant):
                yield Advice(
                    name=UNASKED,
                    number=float(unasked.size),
                    unit="ranks",
                    finding=unasked.finding,
                    change=f"{changes(case.layout, meant.layout)}: {unasked.cure}",
                    planned=meant,
                    gain=case.gain(meant),
                )


def unasked_words(case: Case) -> Iterator[str]:
    """Yield the same where no plan stands behind it."""
    yield from (f"{unasked.finding}: {unasked.cure}" for unasked in case.origin.unasked)
