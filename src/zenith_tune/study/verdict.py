"""What a study comes to, in one sentence and as values: how much faster and how sure, how full, what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from zenith_tune.study.budget import Budget
from zenith_tune.study.changes import Change, changes_of
from zenith_tune.study.lever_results import LeverGain, LeverResult, cut_off_sentence
from zenith_tune.study.precision import TO_90
from zenith_tune.study.study import Study
from zenith_tune.study.trial import CONFIRMED_ON, Outcome, Trial
from zenith_tune.units import format_bytes, format_seconds, format_value, is_of_time

NEARLY_FULL = 0.95
"""Above this share of the memory a safer trial is named, and one below `SAFER` of it counts as safer."""
SAFER = 0.90
QUIETER = "use an idle machine, or longer trials (--no-early-stop, --repeats 3)"
"""What helps where runs differ by too much to tell what is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Safer:
    """A trial that is nearly as fast and leaves more memory free."""

    number: int
    speedup: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a study."""

    sentence: str
    speedup: float | None = None
    """The speed relative to the user's own command: 1.43 is 43% faster; None where there is nothing to compare."""
    low: float | None = None
    high: float | None = None
    """The ends of the 90% interval."""
    lever_speedup: float | None = None
    """The part of the speedup from levers on the best layout; None where none was kept."""
    layout_speedup: float | None = None
    """The part of the speedup from the layout, where levers gave the rest."""
    lever_gains: tuple[LeverGain, ...] = ()
    """The gain of each group of levers that were turned on at once, in order."""
    levers: tuple[LeverResult, ...] = ()
    """The result of each lever that could be tried on the best layout."""
    is_confirmed: bool = False
    """Whether it held when the own command ran again, and the best as well where that alone did not settle it."""
    is_clear: bool = False
    """Whether it is many times the noise, so that neither had to run again."""
    confirmed_on: str = ""
    """What the best met when it ran again, which a short trial may not, or why it could not."""
    headline: str = ""
    """The gain in one clause, without how it came about."""
    changes: tuple[Change, ...] = ()
    """What the best command has in place of the user's own."""
    ties: tuple[int, ...] = ()
    """Trials that are as fast as the best within the noise."""
    memory_share: float | None = None
    safer: Safer | None = None
    gpu_hours: float = 0.0
    cost: float | None = None
    """Dollars, where the price is known."""
    pays_after_hours: float | None = None
    """Hours of training with the best command until the study has paid for itself."""


def verdict_of(study: Study, budget: Budget, *, num_gpus: int | None, capacity_bytes: float | None = None) -> Verdict:
    """Return what a study comes to; of one whose GPUs are not known, one counts."""
    trials_s = spent_s(study)
    gpu_s = trials_s * (num_gpus or 1)
    spent = f"the study took {budget.cost(gpu_s) if num_gpus or budget.price else format_seconds(trials_s)}"
    best = study.best
    first = study.first_run(best) if best is not None else None
    peak_bytes = max((trial.peak_memory_bytes or 0 for trial in (best, first) if trial is not None), default=0)
    memory_share = peak_bytes / capacity_bytes if peak_bytes and capacity_bytes else None
    found = _without_gain(study, memory_share) or _with_gain(study, trials_s, memory_share, capacity_bytes)
    pays_h = found.pays_after_hours
    pays = "" if pays_h is None else f" and pays for itself after {format_seconds(pays_h * 3600)} of training"
    results = study.lever_results
    return replace(
        found,
        headline=f"{found.headline or found.sentence}{pays.replace(' and', ',', 1)}",
        sentence="; ".join(filter(None, (found.sentence, cut_off_sentence(results), f"{spent}{pays}"))),
        levers=results,
        gpu_hours=gpu_s / 3600,
        cost=None if budget.price is None else gpu_s / 3600 * budget.price,
    )


def _without_gain(study: Study, memory_share: float | None) -> Verdict | None:
    """Return what a study comes to in which nothing is faster than the user's own command; None where something is."""
    if not study.is_sound:
        return Verdict(sentence="no verdict: the options take no effect")
    base, best, gain = study.baseline, study.best, study.gain
    if best is None:
        over = any(trial.ok for trial in study.trials)
        if over:
            none = "no trial stays within the memory limit"
        elif study.trials:
            first = study.trials[0]
            none = f"every trial failed (trial {study.number_of(first)}: {first.cause})"
        else:
            none = "no trial ran"
        return Verdict(sentence=f"{none}: {_stays(study)}")
    if gain is None:
        if base is None:
            compared = "your own command did not run, so no gain is claimed"
        elif base.ok:
            compared = f"no ratio to the {format_value(base.value or 0.0)} of your own command can be stated"
        else:
            compared = "your own command failed"
        fastest = study.fastest or best
        who = "your own command" if fastest is base else f"trial {study.number_of(fastest)}"
        found = f"best: {who}, {format_value(fastest.value or 0.0, fastest.unit)}"
        return Verdict(sentence=f"{found}; {compared}", memory_share=memory_share)
    if gain <= 0 and base is not None and not study.may_be_best(base):
        takes = _takes_more(study, base)
        found = f"trial {study.number_of(best)} is the best within the memory limit"
        sentence = f"{takes}: {found}, {1 + gain:.2f}x your own command"
        return Verdict(sentence=sentence, speedup=1 + gain, memory_share=memory_share)
    if gain <= 0 or study.leader is base:
        if study.num_pairs > 1 and study.is_too_noisy:
            return Verdict(sentence=_too_noisy(study, best), speedup=1.0)
        within = " within the memory limit" if any(not study.may_be_best(trial) for trial in study.trials) else ""
        if any(study.may_be_best(trial) and (study.row_gain(trial) or 0.0) > 0 for trial in study.counted):
            return Verdict(sentence=f"no gain beyond the noise: {_stays(study)}", speedup=1.0)
        none = f"none of {study.num_trials} trials{within} is" if study.num_trials > 1 else "the trial is not"
        return Verdict(sentence=f"no gain: {none} {_faster(best)} than your own command", speedup=1.0)
    return None


def _stays(study: Study) -> str:
    """Say what a study without a best trial leaves its user with."""
    base = study.baseline
    if base is None or not base.ok:
        failed = "your command failed; " if base is not None and base.outcome is not Outcome.CANCELLED else ""
        return f"{failed}nothing was tuned"
    return "your own command stays the best" if study.may_be_best(base) else _takes_more(study, base)


def _takes_more(study: Study, base: Trial) -> str:
    if (why := study.why_ruled_out(base)) is not None:
        return f"your own command {why}"
    limit = format_bytes(study.memory_limit_bytes or 0)
    return f"your own command takes {format_bytes(base.peak_memory_bytes or 0)}, more than the limit of {limit}"


def _with_gain(study: Study, job_s: float, memory_share: float | None, capacity_bytes: float | None) -> Verdict:
    """Return the gain of a study that has one; `job_s` is how long the job could have trained in the study's time."""
    best, gain = study.best, study.gain
    assert best is not None and gain is not None
    half = study.gain_half_width
    assert half is not None
    is_confirmed = study.is_clear and any(run is not None and run.is_rerun for run in (best, study.baseline))
    ties = tuple(study.number_of(trial) for trial in _ties(study))
    safer = _safer(study, memory_share, capacity_bytes)
    low, high = (1 + gain) * math.exp(-half), (1 + gain) * math.exp(half)
    is_faster = low > 1 and _faster(best) == "faster"
    levers = study.lever_speedup
    confirmed_on = str(best.extra.get(CONFIRMED_ON, ""))
    speed = _speed(study, 1 + gain, low, high, is_confirmed=is_confirmed)
    parts = (
        speed + _phases(study, 1 + gain),
        f"tied: {', '.join(f'trial {number}' for number in ties)}" if ties else "",
        confirmed_on,
        _memory(memory_share, safer),
    )
    return Verdict(
        sentence=speed if study.is_within_noise else "; ".join(filter(None, parts)),
        headline=speed,
        changes=() if study.is_within_noise else changes_of(study, 1 + gain),
        speedup=1 + gain,
        low=low,
        high=high,
        lever_speedup=levers,
        layout_speedup=None if levers is None else (1 + gain) / levers,
        lever_gains=study.lever_gains,
        is_confirmed=is_confirmed,
        is_clear=study.is_clear and not is_confirmed,
        confirmed_on=confirmed_on,
        ties=ties,
        memory_share=memory_share,
        safer=safer,
        pays_after_hours=job_s / gain / 3600 if is_faster else None,
    )


def spent_s(study: Study) -> float:
    """Return the seconds that all runs of a study took, one after the other."""
    return study.cut_off_s + math.fsum((trial.duration_s or 0.0) * trial.num_runs for trial in study.runs)


def _ties(study: Study) -> list[Trial]:
    """Return the trials that are as good as the best within the noise; of one that ran again, its last run."""
    best, launch_sd = study.best, math.sqrt(2) * study.launch_noise.sd
    return [
        trial
        for trial in study.counted
        if best is not None and best.value and trial.value and trial is not best and study.may_be_best(trial)
        if trial.value / best.value > 0
        if abs(math.log(trial.value / best.value))
        < TO_90 * math.hypot(best.standard_error, trial.standard_error, launch_sd)
    ]


def _safer(study: Study, memory_share: float | None, capacity_bytes: float | None) -> Safer | None:
    """Return the fastest trial that leaves memory free, where the best one does not."""
    if memory_share is None or memory_share < NEARLY_FULL or capacity_bytes is None:
        return None
    found = [
        (gain, trial)
        for trial in study.counted
        if trial.peak_memory_bytes and trial.peak_memory_bytes <= SAFER * capacity_bytes
        if (gain := study.gain_of(trial)) is not None and gain > 0
    ]
    if not found:
        return None
    gain, trial = max(found, key=lambda item: item[0])
    return Safer(number=study.number_of(trial), speedup=1 + gain, memory_bytes=trial.peak_memory_bytes or 0)


def _faster(trial: Trial) -> str:
    return "faster" if trial.step_s is not None or is_of_time(trial.unit) else "better"


def _speed(study: Study, speedup: float, low: float, high: float, *, is_confirmed: bool) -> str:
    assert study.best is not None
    if study.is_within_noise:
        interval = ", in too few runs to tell more" if study.is_wide else f" ({low:.2f} to {high:.2f})"
        return _within_noise(study, study.best, f"{speedup:.2f}x{interval}")
    how = "confirmed" if is_confirmed else "far beyond the noise" if study.is_clear else "not confirmed"
    if how == "not confirmed" and not study.launch_noise.num_pairs:
        how += f": two launches may differ by {study.launch_noise.half_width:.0%}"
    return f"{speedup:.2f}x {_faster(study.best)} ({low:.2f} to {high:.2f}, {how})"


def _within_noise(study: Study, best: Trial, measured: str) -> str:
    """Say that there is no gain, what was measured, and by whose noise."""
    if study.is_too_noisy:
        return _too_noisy(study, best)
    found = f"no gain beyond the noise: {_stays(study)}; trial {study.number_of(best)} measured {measured}"
    by_earlier = study.noisy_ratio is None and study.launch_noise.num_pairs
    earlier = "; the noise is that of earlier studies on this machine, as nothing ran twice here"
    return found + earlier * bool(by_earlier)


def _too_noisy(study: Study, best: Trial) -> str:
    """Say what was seen of a machine on which runs differ by too much to tell, and what may help."""
    ratio, (low, high), advice = study.noisy_ratio, study.seen_speedups(best) or (0.0, 0.0), QUIETER
    if ratio is not None:
        why = f"and runs of one command differed by up to {f'{ratio:.1f}x' if ratio >= 2 else f'{ratio - 1:.0%}'}"
    elif study.launch_noise.num_pairs:
        why = "but in earlier studies on this machine runs of one command differed by more"
        advice = "let both run again here (no --no-confirm, or a larger budget)"
    else:
        why = "but the steps of a run differ too much"
    measured = f"{low:.2f}x" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}x to {high:.2f}x"
    trial = f"trial {study.number_of(best)} measured {measured} its speed"
    return f"too noisy to tell, so your own command stays: {trial}, {why}; {advice}"


def _phases(study: Study, speedup: float) -> str:
    """Say what the layout gave and what levers did, each group by itself."""
    if (levers := study.lever_speedup) is None:
        return ""
    each = (
        f"{' + '.join(gain.levers)} {gain.speedup:.2f}x{' with other numerics' * gain.numerics}"
        for gain in study.lever_gains
    )
    layout = f", of which the layout gives {speedup / levers:.2f}x"
    return f"{layout} and performance settings {levers:.2f}x ({', '.join(each)})"


def _memory(share: float | None, safer: Safer | None) -> str:
    less = f": trial {safer.number} is {safer.speedup:.2f}x at {format_bytes(safer.memory_bytes)}" if safer else ""
    return "" if share is None else f"uses {share:.1%} of GPU memory{less}"
