"""The rungs of a search over ZeRO stages: which there are, and the largest and the best micro-batch of one.

Each rung saves memory that the one before keeps, and pays for it in time.

Legend: m micro-batch, p pace (time per sample), a what a sample takes, b what each micro-batch takes beside samples.

A global batch takes as many micro-batches as m leaves, so p = a + b / m: launches, waits and what else is paid once per
micro-batch is spread over its samples. Two runs give a and b.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zenith_tune.describe.deepspeed_config import AXES, CPU, MEMORY_MODES, matters
from zenith_tune.study.parameters import Direction, Params, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Hold a stage and how it saves memory beside that."""

    stage: int
    modes: Mapping[str, Value]
    base: Params
    """A whole point of it, at the smallest micro-batch."""
    is_lean: bool = False
    """Whether its keys are those that take the least memory."""

    @property
    def name(self) -> str:
        """What a person calls it.

        >>> Rung(stage=2, modes={"offload_optimizer": "cpu"}, base={}).name
        'stage 2, offload_optimizer'
        """
        saving = [name for name, value in self.modes.items() if is_saving(value)]
        return ", ".join([f"stage {self.stage}", *saving, *(["small buffers"] if self.is_lean else [])])

    def at(self, mbs: int, **others: Value) -> Params:
        """Return its point of a micro-batch."""
        return {**self.base, "mbs": mbs, **others}


def is_saving(value: Value) -> bool:
    """Tell whether a mode is one that saves memory."""
    return value is True or value == CPU


def rungs(choices: Mapping[str, tuple[Value, ...]]) -> Iterator[Rung]:
    """Yield the stages in order for each way of saving memory, those that save nothing first.

    A stage whose keys can be set to take less memory comes a second time with these.
    """
    modes = [name for name in MEMORY_MODES if name in choices]
    chosen = [sorted(choices[name], key=is_saving) for name in modes]
    combinations = [dict(zip(modes, values, strict=True)) for values in itertools.product(*chosen)]
    for mode in sorted(combinations, key=_saving_order):
        for stage in sorted(value for value in choices["stage"] if isinstance(value, int)):
            if all(matters(name, stage) or not is_saving(value) for name, value in mode.items()):
                usual = _rung(choices, mode, stage)
                lean = _rung(leanest(choices), mode, stage, idle=choices)
                yield usual
                if lean.base != usual.base:
                    yield replace(lean, is_lean=True)


def _rung(
    choices: Mapping[str, tuple[Value, ...]],
    mode: Mapping[str, Value],
    stage: int,
    idle: Mapping[str, tuple[Value, ...]] | None = None,
) -> Rung:
    """Return a rung with the first choices; keys without effect have those of `idle`: a point has one spelling."""
    first: Params = {name: values[0] for name, values in choices.items()}
    still = {name: values[0] for name, values in (idle or choices).items()}
    wanted = {**first, **mode, "stage": stage, "mbs": min(choices["mbs"])}
    base = {name: value if matters(name, stage) else still[name] for name, value in wanted.items()}
    return Rung(stage=stage, modes={name: value for name, value in mode.items() if matters(name, stage)}, base=base)


def leanest(choices: Mapping[str, tuple[Value, ...]]) -> dict[str, tuple[Value, ...]]:
    """Return the choices with those first that take the least memory: small buckets, and one of them.

    >>> leanest({"reduce_bucket_size": (500, 50), "overlap_comm": (True, False), "mbs": (2, 1)})
    {'reduce_bucket_size': (50, 500), 'overlap_comm': (False, True), 'mbs': (2, 1)}
    """
    lean = {name for name, axis in AXES.items() if name not in MEMORY_MODES and not _is_text(axis.choices[0])}
    return {
        name: tuple(sorted(values)) if name in lean and not any(map(_is_text, values)) else values
        for name, values in choices.items()
    }


def _is_text(value: Value) -> bool:
    return isinstance(value, str)


def _saving_order(mode: Mapping[str, Value]) -> list[bool]:
    # Recomputing costs a third of the time, the host's memory more, and weights in it the most.
    return [is_saving(mode.get(name, False)) for name in reversed(MEMORY_MODES)]


class EdgeSearch:
    """Bisect with a guess: the first look is at the guess, and no edge takes more than ceil(log2 n) + 1 looks.

    Of the looks that keep this promise, the one nearest to the guess is taken: where it is right, two often do.

    >>> search = EdgeSearch(10, guess=6)
    >>> looks = []
    >>> while (index := search.next()) is not None:
    ...     looks.append(index)
    ...     search.observe(index, index <= 6)
    >>> looks, search.edge
    ([6, 7], 6)
    """

    def __init__(self, num_candidates: int, guess: int | None = None) -> None:
        self.edge = -1
        """The largest that is known to fit."""
        self.num_looks = 0
        self._limit = num_candidates
        """The smallest that is known not to fit."""
        self._guess = guess
        self._budget = most_looks(num_candidates)

    def next(self) -> int | None:
        """Return the candidate to look at, or None where the edge is known."""
        first, last = self.edge + 1, self._limit - 1
        if first > last:
            return None
        # Whatever the look says, what stays unknown must be found out with the looks that are left.
        most = (1 << (self._budget - self.num_looks - 1)) - 1
        low, high = max(first, last - most), min(last, first + most)
        wanted = (first + last) // 2 if self._guess is None else self._guess
        return min(max(wanted, low), high)

    def observe(self, index: int, fits: bool) -> None:
        """Learn whether a candidate fits."""
        self.num_looks += 1
        if fits:
            self.edge = max(self.edge, index)
        else:
            self._limit = min(self._limit, index)


def most_looks(num_candidates: int) -> int:
    """Return ceil(log2 n) + 1, or 0 where there is nothing to look at.

    >>> [most_looks(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 3, 4, 5]
    """
    return (num_candidates - 1).bit_length() + 1 if num_candidates else 0


class Growth:
    """Hold the values of runs that differ in their micro-batch alone.

    >>> growth = Growth({1: 10.0, 2: 15.0}, Direction.MAXIMIZE)
    >>> round(growth.expected_gain(2, 4), 3)
    0.333
    """

    def __init__(self, values: Mapping[int, float], direction: Direction) -> None:
        self.values = dict(sorted(values.items()))
        self.direction = direction

    @property
    def best(self) -> int | None:
        """The micro-batch of the best run, the smallest of equals."""
        best: int | None = None
        for mbs, value in self.values.items():
            if best is None or self.direction.better(value, than=self.values[best]):
                best = mbs
        return best

    def last_gain(self) -> float | None:
        """Return the gain of the largest micro-batch over one of half its size or less; None where there is none.

        A smaller step may gain less than the plateau and yet be one of many.
        """
        pair = self.last_step()
        return None if pair is None else self.direction.gain(self.values[pair[1]], over=self.values[pair[0]])

    def expected_gain(self, old: int, new: int) -> float | None:
        """Return the gain that p = a + b / m promises of one micro-batch over another; None where nothing is known."""
        if (pair := self.last_step()) is None:
            return None
        p1, p2 = (self._pace(self.values[mbs]) for mbs in pair)
        b = (p1 - p2) / (1 / pair[0] - 1 / pair[1])
        a = p2 - b / pair[1]
        before, after = a + b / old, a + b / new
        # Runs that grow faster than this model has room for say nothing of its end.
        return before / after - 1 if after > 0 and before > 0 else None

    def last_step(self) -> tuple[int, int] | None:
        """Return the last doubling, or more, that was measured."""
        last = max(self.values, default=0)
        half = max((mbs for mbs in self.values if 2 * mbs <= last), default=None)
        return None if half is None else (half, last)

    def _pace(self, value: float) -> float:
        return value if self.direction is Direction.MINIMIZE else 1 / value


RunPoint = Callable[[Rung, int, str], Trial]
NOT_RUN = (Outcome.PRUNED, Outcome.DUPLICATE)


class RungSearch:
    """Search the micro-batch of one rung."""

    def __init__(
        self,
        rung: Rung,
        run: RunPoint,
        direction: Direction,
        plateau: float,
        is_pressed: Callable[[Trial], bool] = lambda trial: False,
        is_known_to_fail: Callable[[Rung, int], bool] = lambda rung, mbs: False,
    ) -> None:
        self.rung, self.direction, self.plateau = rung, direction, plateau
        self.trials: dict[int, Trial] = {}
        self.is_flat = False
        """Whether a larger micro-batch ran and gained less than the plateau."""
        self.skipped: str | None = None
        """Why nothing, or nothing more, was tried."""
        self.num_inside = 0
        """Runs that changed other keys than the micro-batch."""
        self.best_inside: Trial | None = None
        self._run, self._is_pressed, self._is_known_to_fail = run, is_pressed, is_known_to_fail

    def profile(self, mbs: int) -> Trial:
        """Run the smallest micro-batch, which tells the memory of activations and whether the rung runs at all."""
        return self._try(mbs, "profiling run: the smallest micro-batch")

    def try_next(self, mbs: int) -> Trial:
        """Run a second micro-batch, which tells what one more sample takes."""
        return self._try(mbs, "the next micro-batch: what it takes tells the memory of a sample")

    def probe(self, mbs: int) -> None:
        """Run a rung that promises nothing once, where the best so far is."""
        self._try(mbs, "a single run of a stage that would be skipped")

    def find(self, micro_batches: Sequence[int], guess: int | None, why: str) -> None:
        """Find the largest micro-batch that runs, unless growth ends before, then the best one around there."""
        at = None if guess is None else max(sum(mbs <= guess for mbs in micro_batches) - 1, 0)
        search = EdgeSearch(len(micro_batches), at)
        while (index := search.next()) is not None and not self.is_flat:
            if self._is_known_to_fail(self.rung, micro_batches[index]):
                search.observe(index, fits=False)
                continue
            trial = self._try(micro_batches[index], why)
            search.observe(index, trial.ok)
            self.is_flat = trial.ok and self._ends_growth()
        self._refine(sorted({*micro_batches, *self.trials}))

    @property
    def growth(self) -> Growth:
        """How the value grows with the micro-batch."""
        values = {mbs: trial.value for mbs, trial in self.trials.items() if trial.value is not None}
        return Growth(values, self.direction)

    @property
    def best(self) -> Trial | None:
        """The best run."""
        mbs = self.growth.best
        found = self.trials[mbs] if mbs is not None else None
        inside = self.best_inside
        if inside is None or inside.value is None or found is None or found.value is None:
            return found
        return inside if self.direction.better(inside.value, than=found.value) else found

    @property
    def edge(self) -> int | None:
        """The largest micro-batch that ran."""
        return max((mbs for mbs, trial in self.trials.items() if trial.ok), default=None)

    @property
    def roomy_edge(self) -> int | None:
        """The largest micro-batch that ran with memory to spare."""
        return max(self.roomy_growth.values, default=None)

    @property
    def roomy_growth(self) -> Growth:
        """How the value grows where memory does not slow it down."""
        roomy = (trial for trial in self.trials.values() if not self._is_pressed(trial))
        return Growth({int(t.params["mbs"]): t.value for t in roomy if t.value is not None}, self.direction)

    @property
    def has_ended_growing(self) -> bool:
        """Whether a larger micro-batch gained nothing although there was memory to spare."""
        return self.is_flat and self.edge == self.roomy_edge

    @property
    def num_experiments(self) -> int:
        """Trials that were really run."""
        return sum(trial.outcome not in NOT_RUN for trial in self.trials.values()) + self.num_inside

    @property
    def failure(self) -> str | None:
        """Why no run went well, where none did."""
        if self.edge is not None or not self.trials:
            return None
        smallest = min(self.trials)
        trial = self.trials[smallest]
        how = "is not run" if trial.outcome is Outcome.PRUNED else f"does not run ({trial.outcome})"
        return f"micro-batch {smallest} {how}: {trial.cause or 'no cause is known'}"

    def row(self) -> tuple[str, ...]:
        """Return what the summary says of it."""
        best = self.best
        value = format_value(best.value, best.unit) if best and best.value is not None else "-"
        at = f"{best.params['mbs']}" if best else "-"
        edge = "-" if self.edge is None else str(self.edge)
        return (self.rung.name, str(self.num_experiments), value, at, edge, self.skipped or self.failure or "")

    def _try(self, mbs: int, why: str) -> Trial:
        if mbs not in self.trials:
            self.trials[mbs] = self._run(self.rung, mbs, why)
        return self.trials[mbs]

    def _ends_growth(self) -> bool:
        gain = self.growth.last_gain()
        return gain is not None and gain + self._uncertainty() < self.plateau

    def _uncertainty(self) -> float:
        """Return how far the last gain may be off; 0 where it is known better than the plateau asks."""
        errors = [_relative_error(self.trials[mbs]) for mbs in self.growth.last_step() or ()]
        error = math.hypot(*errors)
        return error if error > self.plateau else 0.0

    def _refine(self, micro_batches: Sequence[int]) -> None:
        """Look at the neighbours of the best, as long as a step gains more than the plateau."""
        closed: set[int] = set()
        while (best := self.growth.best) is not None:
            at = micro_batches.index(best)
            steps = [step for step in (1, -1) if step not in closed and self._is_open(micro_batches, at + step)]
            if not steps:
                return
            before = self.trials[best].value
            trial = self._try(micro_batches[at + steps[0]], f"neighbour of the best micro-batch, {best}")
            if trial.value is None or before is None or self.direction.gain(trial.value, over=before) < self.plateau:
                closed.add(steps[0])

    def _is_open(self, micro_batches: Sequence[int], index: int) -> bool:
        """Tell whether a neighbour may be better: larger ones up to the edge, smaller ones where growth has an end."""
        if not 0 <= index < len(micro_batches) or micro_batches[index] in self.trials:
            return False
        best, mbs = self.growth.best, micro_batches[index]
        if best is None or self.edge is None or mbs > best:
            return self.edge is not None and mbs < self.edge
        if self.is_flat or best != self.edge or self._is_pressed(self.trials[best]):
            return True
        gain = self.growth.expected_gain(mbs, best)
        return gain is not None and gain < self.plateau


def _relative_error(trial: Trial) -> float:
    """Return how well a trial's value is known: its spread, and how many samples make up for it."""
    return (trial.spread or 0.0) / math.sqrt(max(trial.num_samples or 1, 1))
