"""A diagnosis for people and for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from zenith_tune.doctor.diagnosis import Diagnosis, diagnosis_lines, memory_message
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput, Remedy
from zenith_tune.report.plan.json import planned_object
from zenith_tune.units import format_bytes, format_gain, format_seconds

Json = dict[str, Any]


class DoctorReport:
    """Print diagnoses."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def diagnosis(self, diagnosis: Diagnosis, what: str) -> None:
        """Print what a run is, what was found and what to change."""
        run = diagnosis.run
        self.say(f"{what}: {_title(run)}")
        self.say(_figures(run))
        for line in diagnosis_lines(diagnosis):
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line as it is: a cause quotes a log, whose brackets are no markup."""
        self._console.print(Text(line), soft_wrap=True)


def diagnosis_object(diagnosis: Diagnosis) -> Json:
    """Return a diagnosis as a plain object."""
    run = diagnosis.run
    measured = {
        "step_s": run.measured.step_s,
        "peak_memory_bytes": run.measured.peak_bytes,
        "out_of_memory": run.measured.out_of_memory,
        "cause": run.measured.cause or None,
    }
    return {
        "model": run.planner.model.name,
        "cluster": run.cluster.name,
        "framework": run.planner.job.framework.name,
        "seq_len": run.planner.job.seq_len,
        "global_batch": run.layout.global_batch,
        "measured": measured,
        "planned": planned_object(run.planned),
        "fits": run.trains,
        "is_healthy": diagnosis.is_healthy,
        "warnings": list(diagnosis.warnings),
        "advice": [_advice_object(advice) for advice in diagnosis.advice],
        "remedies": [_remedy_object(remedy) for remedy in diagnosis.remedies],
        "way_out": planned_object(diagnosis.way_out) if diagnosis.way_out else None,
    }


def _title(run: DiagnosisInput) -> str:
    job = f"batch {run.layout.global_batch}, sequence {run.planner.job.seq_len}, {run.planner.job.framework.name}"
    return f"{run.planner.model.name} on {run.cluster.name}, {run.planned.name}, {job}"


def _figures(run: DiagnosisInput) -> str:
    planned, measured = run.planned, run.measured
    at = planned if run.trains else planned.with_room()
    words = [f"planned {format_seconds(at.step_s)} a step ({at.bound}), {memory_message(planned)}"]
    if measured.step_s is not None:
        off = format_gain(measured.step_s / run.step_s(planned) - 1)
        words.append(f"measured {format_seconds(measured.step_s)} ({off} against the plan)")
    if measured.peak_bytes is not None:
        words.append(f"{format_bytes(measured.peak_bytes)} reserved")
    return "; ".join(words)


def _advice_object(advice: Advice) -> Json:
    return {
        "name": advice.name,
        "number": advice.number,
        "unit": advice.unit,
        "finding": advice.finding,
        "change": advice.change,
        "gain": advice.gain,
        "caution": advice.caution or None,
        "command": advice.command or None,
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
