"""A diagnosis for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from zenith_tune.doctor.advice import Advice, Remedy
from zenith_tune.doctor.case import Case
from zenith_tune.doctor.diagnosis import Diagnosis
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.report.plan_json import planned_object
from zenith_tune.units import GIB, format_bytes, format_gain, format_seconds

Json = dict[str, Any]


class DoctorReport:
    """Print diagnoses."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def diagnosis(self, diagnosis: Diagnosis, what: str) -> None:
        """Print what a run is, what was found and what to change."""
        case = diagnosis.case
        self.say(f"{what}: {_title(case)}")
        self.say(_figures(case))
        for line in lines(diagnosis):
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line as it is: a cause quotes a log, whose brackets are no markup."""
        self._console.print(Text(line), soft_wrap=True)


def lines(diagnosis: Diagnosis) -> list[str]:
    """Return what was found, line by line, without the run's own figures."""
    if diagnosis.remedies:
        return _memory_lines(diagnosis)
    if diagnosis.is_healthy:
        return [f"nothing is wrong: {diagnosis.all_clear}"]
    return [
        line for number, advice in enumerate(diagnosis.advice, 1) for line in _advice(diagnosis.case, advice, number)
    ]


def diagnosis_object(diagnosis: Diagnosis) -> Json:
    """Return a diagnosis as a plain object."""
    case = diagnosis.case
    measured = {
        "step_s": case.measured.step_s,
        "peak_memory_bytes": case.measured.peak_bytes,
        "out_of_memory": case.measured.out_of_memory,
        "cause": case.measured.cause or None,
    }
    return {
        "model": case.planner.model.name,
        "cluster": case.cluster.name,
        "framework": case.planner.job.framework.name,
        "seq_len": case.planner.job.seq_len,
        "global_batch": case.layout.global_batch,
        "measured": measured,
        "planned": planned_object(case.planned),
        "fits": case.runs,
        "is_healthy": diagnosis.is_healthy,
        "advice": [_advice_object(advice) for advice in diagnosis.advice],
        "remedies": [_remedy_object(remedy) for remedy in diagnosis.remedies],
        "way_out": planned_object(diagnosis.way_out) if diagnosis.way_out else None,
    }


def _title(case: Case) -> str:
    job = f"batch {case.layout.global_batch}, sequence {case.planner.job.seq_len}, {case.planner.job.framework.name}"
    return f"{case.planner.model.name} on {case.cluster.name}, {case.planned.name}, {job}"


def _figures(case: Case) -> str:
    planned, measured = case.planned, case.measured
    at = planned if case.runs else planned.with_room()
    words = [f"planned {format_seconds(at.step_s)} a step ({at.bound}), {_memory(planned)}"]
    if measured.step_s is not None:
        off = format_gain(measured.step_s / case.step_s(planned) - 1)
        words.append(f"measured {format_seconds(measured.step_s)} ({off} against the plan)")
    if measured.peak_bytes is not None:
        words.append(f"{format_bytes(measured.peak_bytes)} reserved")
    return "; ".join(words)


def _advice(case: Case, advice: Advice, number: int) -> list[str]:
    before, after = format_seconds(case.step_s(case.planned)), format_seconds(case.step_s(advice.planned))
    gain = f"{format_gain(advice.gain)} speed ({before} -> {after} a step on paper)"
    found = [
        f"{number}. {advice.finding}",
        f"   change {advice.change}",
        f"   predicted {gain}; {_memory(advice.planned)}, {advice.planned.oom_probability:.0%} OOM",
    ]
    return [*found, *([f"   but {advice.caution}"] if advice.caution else [])]


def _memory_lines(diagnosis: Diagnosis) -> list[str]:
    case = diagnosis.case
    if case.measured.out_of_memory:
        head = f"it ran out of memory ({case.measured.cause})" if case.measured.cause else "it ran out of memory"
    else:
        head = f"it is {case.planned.oom_probability:.0%} likely to run out of memory"
    found = [f"{head}; what helps, and what it costs:", *map(_remedy, diagnosis.remedies)]
    if (out := diagnosis.way_out) is not None:
        change = changes(case.layout, out.layout)
        figures = f"{format_seconds(out.step_s)} a step, {_memory(out)}, {out.oom_probability:.0%} OOM"
        found.append(f"no single change is enough; the fastest layout that fits is {out.name}: {figures} ({change})")
    elif not any(remedy.fits for remedy in diagnosis.remedies):
        found.append("no layout fits on these GPUs: take more of them, or larger ones (zenithtune plan says how many)")
    return found


def _remedy(remedy: Remedy) -> str:
    if remedy.planned is None or remedy.cost is None:
        return f"  not to be had  {remedy.name}: {remedy.why_not}"
    figures = f"{_memory(remedy.planned)}, {remedy.planned.oom_probability:.0%} OOM, {format_gain(remedy.cost)} time"
    return f"  {'fits' if remedy.fits else 'not enough':<14} {remedy.name}: {remedy.change} ({figures})"


def _memory(planned: PlannedLayout) -> str:
    return f"{planned.memory_bytes / GIB:.1f} of {format_bytes(planned.capacity_bytes)}"


def _advice_object(advice: Advice) -> Json:
    return {
        "name": advice.name,
        "number": advice.number,
        "unit": advice.unit,
        "finding": advice.finding,
        "change": advice.change,
        "gain": advice.gain,
        "caution": advice.caution or None,
        "planned": planned_object(advice.planned),
    }


def _remedy_object(remedy: Remedy) -> Json:
    return {
        "name": remedy.name,
        "fits": remedy.fits,
        "change": remedy.change or None,
        "cost": remedy.cost,
        "why_not": remedy.why_not or None,
        "planned": planned_object(remedy.planned) if remedy.planned else None,
    }
