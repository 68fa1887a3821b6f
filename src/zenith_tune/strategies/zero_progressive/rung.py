"""The rungs of a search over ZeRO stages: which there are, and the largest and the best micro-batch of one.

Each rung saves memory that the one before keeps, and pays for it in time.

Legend: m micro-batch, p pace (time per sample), a time per sample, b time per micro-batch whatever its samples.

A global batch takes as many micro-batches as m leaves, so p = a + b / m: launches, waits and other costs per
micro-batch are spread over its samples. Two runs give a and b.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.describe.deepspeed_config import AXES, CPU, MEMORY_MODES, matters
from zenith_tune.strategies.zero_progressive.feasibility import ActivationProfile, MeasuredMemory
from zenith_tune.study.parameters import Direction, Params, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_value

Choices = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A stage with the modes that save memory."""

    base: Params
    """Its whole point at the smallest micro-batch."""
    is_lean: bool = False
    """Whether its keys are those that take the least memory."""

    @property
    def stage(self) -> int:
        return int(self.base["stage"])

    @property
    def name(self) -> str:
        """The name in summaries."""
        modes = [name for name in MEMORY_MODES if is_saving(self.base.get(name, False)) and matters(name, self.stage)]
        return ", ".join([f"stage {self.stage}", *modes, *(["small buffers"] if self.is_lean else [])])

    def at(self, mbs: int) -> Params:
        return {**self.base, "mbs": mbs}


def is_saving(value: Value) -> bool:
    """Tell whether a mode is one that saves memory."""
    return value is True or value == CPU


def rungs(choices: Choices) -> Iterator[Rung]:
    """Yield the stages in order for each way of saving memory, those that save nothing first.

    A stage whose keys can be set to take less memory comes a second time with these. Keys without effect at a stage
    keep their first choice, so that no point has two spellings.
    """
    first = {name: values[0] for name, values in choices.items()}
    lean = {name: least(name, values) for name, values in choices.items()}
    modes = [name for name in MEMORY_MODES if name in choices]
    combinations = [
        dict(zip(modes, values, strict=True))
        for values in itertools.product(*(sorted(choices[name], key=is_saving) for name in modes))
    ]
    # Recomputing costs a third of the time, the host's memory more, and weights in it the most.
    combinations.sort(key=lambda mode: [is_saving(mode.get(name, False)) for name in reversed(MEMORY_MODES)])
    for mode, stage in itertools.product(combinations, sorted(map(int, choices["stage"]))):
        if all(matters(name, stage) or not is_saving(value) for name, value in mode.items()):
            own: Params = {**mode, "stage": stage, "mbs": min(choices["mbs"])}
            usual, small = (
                {name: value if matters(name, stage) else first[name] for name, value in {**keys, **own}.items()}
                for keys in (first, lean)
            )
            yield Rung(base=usual)
            if small != usual:
                yield Rung(base=small, is_lean=True)


def least(name: str, values: Sequence[Value]) -> Value:
    """Return the choice of a key that takes the least memory, such as a small bucket; the first where none does."""
    is_size = name in AXES and name not in MEMORY_MODES and not isinstance(AXES[name].choices[0], str)
    return min(values) if is_size and not any(isinstance(value, str) for value in values) else values[0]


class EdgeSearch:
    """A bisection that begins with a guess; no edge takes more than ceil(log2 n) + 1 looks.

    Of the looks that keep this bound, the one nearest to the guess is taken: where it is right, two often do.
    """

    def __init__(self, num_candidates: int, guess: int | None = None) -> None:
        self.edge = -1
        """The largest candidate that is known to fit."""
        self._limit = num_candidates
        """The smallest candidate that is known not to fit."""
        self._guess = guess
        self._looks_left = most_looks(num_candidates)

    def next(self) -> int | None:
        """Return the candidate to look at, or None where the edge is known."""
        first, last = self.edge + 1, self._limit - 1
        if first > last:
            return None
        # Whatever the look shows, the remaining looks must do for what is still unknown.
        most = (1 << (self._looks_left - 1)) - 1
        wanted = (first + last) // 2 if self._guess is None else self._guess
        return min(max(wanted, first, last - most), last, first + most)

    def observe(self, index: int, fits: bool) -> None:
        """Learn whether the candidate that was looked at fits."""
        self._looks_left -= 1
        if fits:
            self.edge = index
        else:
            self._limit = index


def most_looks(num_candidates: int) -> int:
    """Return ceil(log2 n) + 1, or 0 where there is nothing to look at."""
    return (num_candidates - 1).bit_length() + 1 if num_candidates else 0


class Growth:
    """The values of runs that differ only in their micro-batch."""

    def __init__(self, values: Mapping[int, float], direction: Direction) -> None:
        self.values = dict(sorted(values.items()))
        self.direction = direction

    @property
    def best(self) -> int | None:
        """The micro-batch of the best run, the smallest of equals."""
        return min(self.values, key=lambda mbs: self.direction.sign * self.values[mbs], default=None)

    def last_step(self) -> tuple[int, int] | None:
        """Return the last doubling, or more, that was measured: a smaller step may gain little and be one of many."""
        last = max(self.values, default=0)
        half = max((mbs for mbs in self.values if 2 * mbs <= last), default=None)
        return None if half is None else (half, last)

    def last_gain(self) -> float | None:
        pair = self.last_step()
        return None if pair is None else self.direction.gain(self.values[pair[1]], over=self.values[pair[0]])

    def expected_gain(self, old: int, new: int) -> float | None:
        """Return the gain that p = a + b / m predicts of one micro-batch over another; None where nothing is known."""
        if (pair := self.last_step()) is None:
            return None
        is_pace = self.direction is Direction.MINIMIZE
        p1, p2 = (self.values[mbs] if is_pace else 1 / self.values[mbs] for mbs in pair)
        b = (p1 - p2) / (1 / pair[0] - 1 / pair[1])
        a = p2 - b / pair[1]
        before, after = a + b / old, a + b / new
        # Runs that grow faster than this model allows do not show where growth ends.
        return before / after - 1 if after > 0 and before > 0 else None


PRESSED = 0.9
"""Share of the memory above which a run is slowed down, and says nothing about larger ones."""
NOT_RUN = (Outcome.PRUNED, Outcome.DUPLICATE)


class RungSearch:
    """The search for the micro-batch of one rung."""

    def __init__(
        self,
        rung: Rung,
        run: Callable[[Params, str], Trial],
        direction: Direction,
        plateau: float,
        memory: ActivationProfile | MeasuredMemory,
    ) -> None:
        self.rung, self.direction, self.plateau = rung, direction, plateau
        self.trials: dict[int, Trial] = {}
        self.inside: list[Trial] = []
        """Runs that changed other keys than the micro-batch."""
        self.is_flat = False
        """Whether a larger micro-batch ran and gained less than the plateau."""
        self.skipped: str | None = None
        """Why nothing, or nothing more, was tried."""
        self._run, self._memory = run, memory

    def run_at(self, mbs: int, why: str) -> Trial:
        """Run a micro-batch unless it has run."""
        if mbs not in self.trials:
            self.trials[mbs] = self._run(self.rung.at(mbs), why)
        return self.trials[mbs]

    def find(self, micro_batches: Sequence[int], guess: int | None, why: str) -> None:
        """Find the largest micro-batch that runs, unless growth ends before, then the best one around there."""
        at = None if guess is None else max(sum(mbs <= guess for mbs in micro_batches) - 1, 0)
        search = EdgeSearch(len(micro_batches), at)
        while (index := search.next()) is not None and not self.is_flat:
            # Runs of this very model may have shown that it needs more.
            point = self.rung.at(micro_batches[index])
            if isinstance(self._memory, MeasuredMemory) and self._memory.why_not(point) is not None:
                search.observe(index, fits=False)
                continue
            trial = self.run_at(micro_batches[index], why)
            search.observe(index, trial.ok)
            self.is_flat = trial.ok and self._has_reached_plateau()
        self._refine(sorted({*micro_batches, *self.trials}))

    @property
    def growth(self) -> Growth:
        return Growth({mbs: t.value for mbs, t in self.trials.items() if t.value is not None}, self.direction)

    @property
    def roomy_growth(self) -> Growth:
        roomy = {mbs: trial for mbs, trial in self.trials.items() if not self._is_pressed(trial)}
        return Growth({mbs: t.value for mbs, t in roomy.items() if t.value is not None}, self.direction)

    @property
    def best(self) -> Trial | None:
        """The best run, the first of equals."""
        ran = [trial for trial in (*(self.trials[mbs] for mbs in sorted(self.trials)), *self.inside) if trial.ok]
        return min(ran, key=lambda trial: self.direction.sign * (trial.value or 0.0), default=None)

    @property
    def edge(self) -> int | None:
        """The largest micro-batch that ran."""
        return max(self.growth.values, default=None)

    @property
    def roomy_edge(self) -> int | None:
        """The largest micro-batch that ran with memory to spare."""
        return max(self.roomy_growth.values, default=None)

    @property
    def has_ended_growing(self) -> bool:
        """Whether a larger micro-batch gained nothing although there was memory to spare."""
        return self.is_flat and self.edge == self.roomy_edge

    @property
    def failure(self) -> str | None:
        """Why no run succeeded, where none did."""
        if self.edge is not None or not self.trials:
            return None
        smallest = min(self.trials)
        trial = self.trials[smallest]
        how = "is not run" if trial.outcome is Outcome.PRUNED else f"does not run ({trial.outcome})"
        return f"micro-batch {smallest} {how}: {trial.cause or 'no cause is known'}"

    def row(self) -> tuple[str, ...]:
        best, num_runs = self.best, sum(trial.outcome not in NOT_RUN for trial in self.trials.values())
        value = format_value(best.value, best.unit) if best and best.value is not None else "-"
        at, edge = best.params["mbs"] if best else "-", "-" if self.edge is None else self.edge
        counts = f"{num_runs + len(self.inside)}", value, f"{at}", f"{edge}"
        return (self.rung.name, *counts, self.skipped or self.failure or "")

    def _is_pressed(self, trial: Trial) -> bool:
        return (trial.peak_memory_bytes or 0) > PRESSED * self._memory.capacity_bytes

    def _has_reached_plateau(self) -> bool:
        growth = self.growth
        gain = growth.last_gain()
        error = math.hypot(*(self.trials[mbs].standard_error for mbs in growth.last_step() or ()))
        # An error below the plateau decides nothing.
        return gain is not None and gain + (error if error > self.plateau else 0.0) < self.plateau

    def _refine(self, micro_batches: Sequence[int]) -> None:
        """Look at the neighbours of the best, as long as a step gains more than the plateau."""
        closed: set[int] = set()
        while (best := self.growth.best) is not None:
            at = micro_batches.index(best)
            steps = [step for step in (1, -1) if step not in closed and self._is_open(micro_batches, at + step)]
            if not steps:
                return
            before = self.trials[best].value
            trial = self.run_at(micro_batches[at + steps[0]], f"neighbour of the best micro-batch, {best}")
            if trial.value is None or before is None or self.direction.gain(trial.value, over=before) < self.plateau:
                closed.add(steps[0])

    def _is_open(self, micro_batches: Sequence[int], index: int) -> bool:
        """Tell whether a neighbour may be better: larger ones up to the edge, smaller ones where growth has an end."""
        if not 0 <= index < len(micro_batches) or micro_batches[index] in self.trials:
            return False
        best, edge, mbs = self.growth.best, self.edge, micro_batches[index]
        if best is None or edge is None:
            return False
        if mbs > best:
            return mbs < edge
        if self.is_flat or best != edge or self._is_pressed(self.trials[best]):
            return True
        gain = self.growth.expected_gain(mbs, best)
        return gain is not None and gain < self.plateau
