"""A diagnosis for people and for programs."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields

from zenith_tune.calibrate.published_runs import PublishedRun, ReferenceRun
from zenith_tune.doctor.causes.cause import Cause
from zenith_tune.doctor.diagnosed_run import Measured, UnplannedRun
from zenith_tune.doctor.diagnosis import Diagnosis, cause_lines, diagnosis_lines
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput, Remedy
from zenith_tune.doctor.published_gap import NotCompared, OwnRun, SpeedGap
from zenith_tune.layouts.layout import layout_name
from zenith_tune.notebook import html_table
from zenith_tune.report.plan.json import planned_object, way_out_object
from zenith_tune.study.files import Json
from zenith_tune.units import format_bytes, format_gain, format_seconds


def report_lines(diagnosis: Diagnosis, what: str) -> Iterator[str]:
    """Yield what a run is, what was found and what to change."""
    run = diagnosis.run
    job = f"batch {run.layout.global_batch}, sequence {run.planner.job.seq_len}, {run.planner.job.framework.name}"
    yield f"{what}: {run.planner.model.name} on {run.cluster.name}, {run.planned.name}, {job}"
    yield _figures(run)
    yield from phase_lines(run.measured)
    yield from diagnosis_lines(diagnosis)


def diagnosis_object(diagnosis: Diagnosis) -> Json:
    """Return a diagnosis as a plain object."""
    run = diagnosis.run
    return {
        "model": run.planner.model.name,
        "cluster": run.cluster.name,
        "framework": run.planner.job.framework.name,
        "seq_len": run.planner.job.seq_len,
        "global_batch": run.layout.global_batch,
        "measured": _measured_object(run.measured),
        "planned": planned_object(run.planned),
        "fits": run.trains,
        "is_healthy": diagnosis.is_healthy,
        "causes": [cause_object(cause) for cause in diagnosis.causes],
        "warnings": list(diagnosis.warnings),
        "advice": [_plain_object(advice) for advice in diagnosis.advice],
        "remedies": [_plain_object(remedy) for remedy in diagnosis.remedies],
        "way_out": planned_object(diagnosis.way_out) if diagnosis.way_out else None,
        "ways_out": [way_out_object(way) for way in diagnosis.ways_out],
    }


def unplanned_lines(run: UnplannedRun) -> Iterator[str]:
    """Yield what the log of a run without a plan says."""
    step_s, peak = run.measured.step_s, run.measured.peak_bytes
    figures = [f"measured {format_seconds(step_s)} a step"] if step_s is not None else []
    figures = figures or ([f"measured {run.value}"] if run.value else [])
    figures += [f"{format_bytes(peak)} reserved"] if peak is not None else []
    yield f"{run.what}: {'; '.join(figures) or 'no steady speed'}"
    yield from cause_lines(run.measured.causes)
    yield from phase_lines(run.measured)
    yield f"not planned: {run.reason}"


def unplanned_object(run: UnplannedRun) -> Json:
    """Return the same as a plain object, with the fields of a diagnosis that have no plan as null."""
    return {
        "measured": _measured_object(run.measured),
        "planned": None,
        "not_planned": run.reason,
        "is_healthy": run.measured.is_sound,
        "causes": [cause_object(cause) for cause in run.measured.causes],
    }


LEAST_SHARE = 0.005
"""Least share of a step of a phase that is printed."""


def phase_lines(measured: Measured) -> Iterator[str]:
    """Yield where a step goes by phase, and what to change."""
    if step_s := sum(measured.phases_s.values()):
        shares = {name: seconds / step_s for name, seconds in measured.phases_s.items()}
        yield f"time: {', '.join(f'{name} {share:.0%}' for name, share in shares.items() if share >= LEAST_SHARE)}"
    for each in measured.phase_findings:
        yield each.finding
        yield f"   change {each.change}"
        yield f"   saves at most {each.gain:.0%} of a step"


ADVICE_COLUMNS = ("found", "change", "predicted speed", "step", "memory", "OOM", "but")


def diagnosis_html(found: Diagnosis | UnplannedRun, what: str, further: Iterable[str]) -> str:
    """Return what a notebook shows: the run, changes as a table, and all else, with further lines, as it is printed."""
    table = ""
    if isinstance(found, UnplannedRun):
        head, *lines = unplanned_lines(found)
    else:
        head, figures, *lines = report_lines(found, what)
        if found.advice:
            table = html_table(ADVICE_COLUMNS, [_advice_cells(found.run, each) for each in found.advice])
            lines = [*phase_lines(found.run.measured), *cause_lines(found.causes), *found.warnings]
        lines = [figures, *lines]
    shown = html.escape("\n".join([*lines, *further]))
    return f"<p><b>{html.escape(head)}</b></p><pre>{shown}</pre>{table}"


def _advice_cells(run: DiagnosisInput, advice: Advice) -> list[str]:
    planned = advice.planned
    step = f"{format_seconds(run.likely_s(run.planned))} → {format_seconds(run.likely_s(planned))}"
    figures = [format_gain(advice.gain), step, planned.memory, f"{planned.oom_probability:.0%}"]
    change = f"{advice.change}, written by: {advice.command}" if advice.command else advice.change
    return [advice.finding, change, *figures, advice.caution]


def cause_object(cause: Cause) -> Json:
    """Return a cause as a plain object."""
    return {
        "name": str(cause.kind),
        "is_fatal": cause.is_fatal,
        "finding": cause.finding,
        "rank": cause.rank,
        "figures": dict(cause.figures),
        "evidence": list(cause.evidence),
        "actions": list(cause.actions),
    }


def _measured_object(measured: Measured) -> Json:
    return {
        "step_s": measured.step_s,
        "peak_memory_bytes": measured.peak_bytes,
        "out_of_memory": measured.out_of_memory,
        "cause": measured.cause or None,
        "phases_s": dict(measured.phases_s),
        "phase_findings": [asdict(each) for each in measured.phase_findings],
    }


def _figures(run: DiagnosisInput) -> str:
    planned, measured = run.planned, run.measured
    shown = planned if run.trains else planned.with_room()
    figures = [f"planned {format_seconds(shown.step_s)} a step ({shown.bound}), {planned.memory}"]
    if measured.step_s is not None:
        off = format_gain(measured.step_s / run.step_s(planned) - 1)
        figures.append(f"measured {format_seconds(measured.step_s)} ({off} against the plan)")
    if measured.peak_bytes is not None:
        figures.append(f"{format_bytes(measured.peak_bytes)} reserved")
    return "; ".join(figures)


def _plain_object(item: Advice | Remedy) -> Json:
    """Return the fields of an advice or a remedy, the changed layout in full and what is empty as null."""
    values = {field.name: getattr(item, field.name) for field in fields(item)}
    return {
        **{name: None if value == "" else value for name, value in values.items()},
        "planned": planned_object(item.planned) if item.planned else None,
    }


LEAST_FACTOR = 1.005
"""Causes of less are summed up."""
LEAST_GAP = 1.1
"""Of a smaller gap causes have no shares: they cancel each other out."""


def gap_lines(gap: SpeedGap | NotCompared) -> Iterator[str]:
    """Yield the other run, the gap, and its causes, the largest first."""
    if isinstance(gap, NotCompared):
        yield f"not compared: {gap.reason}"
        if gap.nearest is not None:
            yield from _reference_lines(gap.nearest)
        return
    theirs, ratio, mine = gap.other.flops_per_s / 1e12, gap.ratio, gap.flops_per_s / 1e12
    faster = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times slower"
    how = "measured" if gap.is_measured else "predicted"
    what = gap.other.what if isinstance(gap.other, OwnRun) else "the nearest published run"
    yield f"{mine:.0f} TFLOP/s a GPU {how}; {what} has {theirs:.0f}, {faster}:"
    yield from _reference_lines(gap.other)
    has_shares = abs(math.log(ratio)) >= math.log(LEAST_GAP)
    small = [cause for cause in gap.causes if abs(math.log(cause.factor)) < math.log(LEAST_FACTOR)]
    for cause in gap.causes:
        if cause not in small:
            share = f"{gap.share(cause):5.0%}" if has_shares else ""
            through = f"{cause.through}: " if cause.through else ""
            yield f"  {cause.name:<22}{cause.factor:5.2f}x {share}  {cause.basis:<12}{through}{cause.change}"
    if small:
        factor = math.prod(cause.factor for cause in small)
        share = f"{sum(gap.share(cause) for cause in small):5.0%}" if has_shares else ""
        yield f"  {'others':<22}{factor:5.2f}x {share}  {'':<12}{', '.join(cause.name for cause in small)}"


def gap_object(gap: SpeedGap | NotCompared) -> Json:
    """Return the same as a plain object."""
    if isinstance(gap, NotCompared):
        return {"not_compared": gap.reason, "published": _reference_object(gap.nearest) if gap.nearest else None}
    return {
        "own" if isinstance(gap.other, OwnRun) else "published": _reference_object(gap.other),
        "tflops_per_gpu": gap.flops_per_s / 1e12,
        "is_measured": gap.is_measured,
        "gap": gap.ratio,
        "causes": [
            {
                "name": cause.name,
                "factor": cause.factor,
                "share": gap.share(cause) if gap.ratio != 1 else None,
                "basis": cause.basis,
                "through": cause.through or None,
                "change": cause.change,
            }
            for cause in gap.causes
        ],
    }


def _reference_lines(run: ReferenceRun) -> Iterator[str]:
    job, layout = run.subject.job, run.layout
    shown = f"{layout_name(layout)}, batch {layout.global_batch}, sequence {job.seq_len}, {job.precision}"
    yield f"  {run.subject.model.name} on {run.subject.cluster.name}, {shown}, {run.software}"
    if isinstance(run, PublishedRun):
        yield f"  {run.source}, {run.year}: {run.url}"


def _reference_object(run: ReferenceRun) -> Json:
    job, layout = run.subject.job, run.layout
    published = {"source": run.source, "url": run.url, "year": run.year} if isinstance(run, PublishedRun) else {}
    return {
        **published,
        **({"run": run.what} if isinstance(run, OwnRun) else {}),
        "software": run.software,
        "model": run.subject.model.name,
        "cluster": run.subject.cluster.name,
        "seq_len": job.seq_len,
        "precision": job.precision,
        "layout": layout_name(layout),
        "states_recompute": run.states_recompute,
        "global_batch": layout.global_batch,
        "step_s": run.step_s,
        "tflops_per_gpu": run.flops_per_s / 1e12,
    }
