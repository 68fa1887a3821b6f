"""A diagnosis in words, line by line."""

from __future__ import annotations

from zenith_tune.doctor.advice import Advice, Remedy
from zenith_tune.doctor.diagnosis import Diagnosis
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.doctor.sharded_elsewhere import has_whole_copies
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.units import GIB, format_bytes, format_gain, format_seconds


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Return what was found, line by line, without the run's own figures."""
    if diagnosis.remedies:
        return [*diagnosis.warnings, *_memory_lines(diagnosis)]
    if diagnosis.is_healthy:
        return [f"nothing is wrong: {diagnosis.all_clear}"]
    advised = (_advice(diagnosis.case, advice, number) for number, advice in enumerate(diagnosis.advice, 1))
    return [*diagnosis.warnings, *(line for lines in advised for line in lines)]


def _advice(case: Case, advice: Advice, number: int) -> list[str]:
    before, after = format_seconds(case.step_s(case.planned)), format_seconds(case.step_s(advice.planned))
    gain = f"{format_gain(advice.gain)} speed ({before} -> {after} a step on paper)"
    found = [
        f"{number}. {advice.finding}",
        f"   change {advice.change}",
        f"   predicted {gain}; {memory_words(advice.planned)}, {advice.planned.oom_probability:.0%} OOM",
    ]
    found += [f"   but {advice.caution}"] if advice.caution else []
    return [*found, *([f"   written by: {advice.command}"] if advice.command else [])]


def _memory_lines(diagnosis: Diagnosis) -> list[str]:
    case = diagnosis.case
    if case.measured.out_of_memory:
        head = f"it ran out of memory ({case.measured.cause})" if case.measured.cause else "it ran out of memory"
    else:
        head = f"it is {case.planned.oom_probability:.0%} likely to run out of memory"
    found = [f"{head}; what helps, and what it costs:", *map(_remedy, diagnosis.remedies)]
    if (out := diagnosis.way_out) is not None:
        change = changes(case.layout, out.layout)
        figures = f"{format_seconds(out.step_s)} a step, {memory_words(out)}, {out.oom_probability:.0%} OOM"
        found.append(f"no single change is enough; the fastest layout that fits is {out.name}: {figures} ({change})")
    elif not any(remedy.fits for remedy in diagnosis.remedies):
        found.append(f"no layout fits on these GPUs: {_larger_machine(case)}")
    return found


def _larger_machine(case: Case) -> str:
    """Return what machine would do: more GPUs hold more of a model only where it is cut or sharded over them."""
    if has_whole_copies(case):
        law = "every GPU holds the whole model, however many there are"
        return f"{law}: shard it with FSDP or ZeRO-3, or take larger ones"
    return "take more of them, or larger ones (zenithtune plan says how many)"


def _remedy(remedy: Remedy) -> str:
    if remedy.planned is None or remedy.cost is None:
        return f"  not to be had  {remedy.name}: {remedy.why_not}"
    figures = (
        f"{memory_words(remedy.planned)}, {remedy.planned.oom_probability:.0%} OOM, {format_gain(remedy.cost)} time"
    )
    return f"  {'fits' if remedy.fits else 'not enough':<14} {remedy.name}: {remedy.change} ({figures})"


def memory_words(planned: PlannedLayout) -> str:
    """Return what a layout needs of what a GPU has."""
    return f"{planned.memory_bytes / GIB:.1f} of {format_bytes(planned.capacity_bytes)}"
