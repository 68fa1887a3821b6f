"""Options that take no effect: a log whose own arguments are others than those asked for, or runs that are all alike.

Megatron-LM dumps `  tensor_model_parallel_size ...... 2`, DeepSpeed `  zero_optimization_stage ...... 1` and, where the
name leaves no room for dots, two blanks; ms-swift `tensor_model_parallel_size=2` within a long line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from zenith_tune.errors import OptionsWithoutEffect
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.layouts.layout import Layout
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_bytes

NUM_ALIKE, NUM_ALIKE_BLIND = 3, 6
"""Runs that are enough to show it, where logs have the memory and where they do not."""
SAME_TIME, SAME_MEMORY = 0.01, 0.001
"""Relative differences that count as equal: of times, besides their spread, and of memory peaks, which hardly vary."""
NOISY_TIME = 0.05
"""Relative difference of times that counts as equal where the memory is the same to the byte."""
HINT = 'does the script hand its arguments on? ("$@" at the end of the line that starts the training)'


def disagreement(log: str, asked: Mapping[str, Value]) -> str | None:
    """Return the argument that a log dumps with another value than was asked for, or None."""
    for name, value in asked.items():
        dumped = re.findall(rf"(?<![\w.-]){name}(?: \.{{1,120}} |=|  )\[?['\"]?([\w/+.-]{{1,40}})", log)
        # A launcher may dump its defaults first: one dump that agrees is enough.
        if dumped and str(value).lower() not in map(str.lower, dumped):
            return f"{name} is {dumped[-1]} in the log, but {value} was asked for"
    return None


LayoutOf = Callable[[Mapping[str, Value]], Layout | None]


def refuse_without_effect(
    study: Study,
    decisive: Collection[str],
    layout_of: LayoutOf = lambda params: None,
    levers: Collection[str] = (),
) -> None:
    """Stop a study whose runs show that what is tuned does not reach the program.

    `decisive` are the parameters that must affect time or memory. Other layouts may come close to one another, but not
    to the byte. A lever that the program switches off says nothing about the other options.
    """

    def counts(trial: Trial) -> bool:
        return not trial.is_rerun and trial.params.keys().isdisjoint(levers)

    disagreeing = [trial for trial in study.trials if trial.failure == FailureKind.NO_EFFECT and counts(trial)]
    if len(disagreeing) >= NUM_ALIKE:
        raise OptionsWithoutEffect(f"the options take no effect: {disagreeing[-1].cause}; {HINT}")
    # Nearly always the last run differs from the first: the quick answer for a long study, which asks after each trial.
    first, last = (next(filter(counts, order), None) for order in (study.trials, reversed(study.trials)))
    if first is None or last is None or not _same(first, last, NOISY_TIME, by_memory=False):
        return
    trials = list(filter(counts, study.trials))
    peaks = {trial.peak_memory_bytes for trial in trials}
    is_blind, is_exact = peaks == {None}, len(peaks) == 1 and None not in peaks
    num_alike, same_time = NUM_ALIKE_BLIND if is_blind else NUM_ALIKE, NOISY_TIME if is_exact else SAME_TIME
    points = {tuple(trial.params.get(name) for name in decisive) for trial in trials}
    # The split of experts has no effect on a model that has none.
    known = (layout_of(trial.params) for trial in trials) if is_exact else ()
    layouts = {replace(layout, ep=1, etp=1) for layout in known if layout is not None}
    # Every pair is compared only where that can end the study, so that the work does not grow with the trials.
    are_enough = len(points) >= num_alike or len(layouts) >= num_alike
    if are_enough and are_alike(trials, by_memory=not is_blind, same_time=same_time):
        names = [name for name in trials[0].params if len({trial.params.get(name) for trial in trials}) > 1]
        what = f"{len(trials)} trials that differ in {', '.join(names)} all take the same time"
        memory = "" if is_blind else f" and memory ({format_bytes(trials[0].peak_memory_bytes or 0)})"
        raise OptionsWithoutEffect(f"the options take no effect: {what}{memory}; {HINT}")


def are_alike(trials: Sequence[Trial], *, by_memory: bool = True, same_time: float = SAME_TIME) -> bool:
    """Tell whether every run went well and took the same time, and the same memory where `by_memory` asks for it."""
    return all(_same(a, b, same_time, by_memory=by_memory) for a, b in itertools.combinations(trials, 2))


def _same(a: Trial, b: Trial, same_time: float, *, by_memory: bool) -> bool:
    times = [trial.step_s or trial.value or 0.0 for trial in (a, b)]
    if not a.ok or not b.ok or not all(times):
        return False
    noise = max(same_time, min((a.spread or 0.0) + (b.spread or 0.0), NOISY_TIME))
    is_same_time = abs(times[0] - times[1]) <= noise * abs(times[0])
    peaks = [trial.peak_memory_bytes or 0 for trial in (a, b)]
    is_same_memory = min(peaks) > 0 and max(peaks) - min(peaks) <= SAME_MEMORY * max(peaks)
    return is_same_time and (is_same_memory or not by_memory)
