"""The nearest published run, or another run of one's own, and why one of the two is slower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.published_runs import PublishedRun, ReferenceRun, published_runs
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.doctor.causes.cause import CauseKind
from zenith_tune.doctor.diagnosed_run import DiagnosedRun
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.doctor.logged_run import positive
from zenith_tune.doctor.speed_gap import GapCause, Settings, alike, settings_of, split_gap, work_of
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.step import time_with_room
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.presets.levers import Lever, compatible

LIMIT = 1.5
"""The largest distance of a run that is compared."""
OTHER_KIND, OTHER = 10.0, 0.3
"""The distance of a model of another kind, and the least of another model or GPU."""
SOFTWARE = "software and the rest"
LEAST_SAVING = 0.005
"""A lever that is expected to save less of a step is not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedGap:
    """A run against a published one or another of one's own."""

    other: ReferenceRun
    flops_per_s: float
    """Model operations per second and GPU of the run, measured or predicted."""
    is_measured: bool
    causes: tuple[GapCause, ...]
    """Factors that multiply to the ratio of the two speeds, the largest first; what is unexplained is among them."""

    @property
    def ratio(self) -> float:
        """How many times faster the other run is."""
        return self.other.flops_per_s / self.flops_per_s

    def share(self, cause: GapCause) -> float:
        """Return a cause's share of the gap, of logarithms, so that shares add up to 1."""
        return math.log(cause.factor) / math.log(self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """A run that no published one is near enough to, or that has no speed."""

    reason: str
    nearest: PublishedRun | None = None


def differences(mine: Settings, other: PublishedRun) -> dict[str, float]:
    """Return in what a published run differs from one's own, with the distance of each."""
    theirs = alike(mine, settings_of(other.subject, other.layout))
    a, b = mine["model"], theirs["model"]
    params = b.num_active_params / a.num_active_params
    rate = theirs["gpu"].bf16_flops / mine["gpu"].bf16_flops
    kind = "with experts" if b.num_experts else "without experts"
    found = {
        f"of a model {kind}": OTHER_KIND * (bool(a.num_experts) != bool(b.num_experts)),
        f"of a model with {params:.2g} times the parameters": (a != b) * (OTHER + abs(math.log(params))),
        f"on {theirs['gpu'].name}": (mine["gpu"] != theirs["gpu"]) * (OTHER + 2 * abs(math.log(rate))),
        f"in {theirs['precision']}": 0.5 * (mine["precision"] != theirs["precision"]),
        f"by {theirs['framework'].name}": 0.5 * (mine["framework"] != theirs["framework"]),
        f"of sequences of {theirs['seq']:,}": 0.3 * abs(math.log(theirs["seq"] / mine["seq"])),
        f"on {theirs['gpus']:,} GPUs": 0.15 * abs(math.log(theirs["gpus"] / mine["gpus"])),
    }
    return {name: distance for name, distance in found.items() if distance}


def nearest_run(mine: Settings, runs: Sequence[PublishedRun]) -> PublishedRun:
    """Return the published run that differs least, the fastest of several."""
    return min(runs, key=lambda run: (sum(differences(mine, run).values()), -run.flops_per_s))


def published_gap(
    run: DiagnosisInput, levers: Sequence[Lever] = (), runs: Sequence[PublishedRun] | None = None
) -> SpeedGap | NotCompared:
    """Compare a run with the nearest of the published ones; `levers` are those that it could turn on."""
    if not run.trains:
        return NotCompared(reason="the run does not train")
    planner = run.planner
    subject = PlanSubject(model=planner.model, cluster=run.cluster, job=planner.job)
    mine = settings_of(subject, run.layout)
    other = nearest_run(mine, published_runs() if runs is None else runs)
    apart = differences(mine, other)
    if sum(apart.values()) > LIMIT:
        most = sorted(apart, key=lambda name: -apart[name])[:2]
        return NotCompared(
            reason=f"no published run is near enough; the nearest is {' and '.join(most)}", nearest=other
        )
    # A plan assumes that gradients are reduced behind the backward pass.
    shares = _shares(run, data_overlap=0.0)
    known = sorted((each for each in levers if not each.is_assumed), key=lambda each: -each.predicted_gain(shares))
    worth = [lever for lever in compatible(known) if lever.predicted_gain(shares) >= LEAST_SAVING]
    names = ", ".join(f"+ {lever.label}" for lever in worth)
    off = [_saved("levers", sum(lever.predicted_gain(shares) for lever in worth), names)] if worth else []
    return _compared(run, other, off, replaced=f"{other.software}, {other.year}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun(ReferenceRun):
    """A run of one's own that was measured."""

    what: str
    """The log or the study."""


def own_gap(run: DiagnosisInput, levers: Sequence[Lever], other: DiagnosedRun) -> SpeedGap | NotCompared:
    """Compare a run with another of one's own; `levers` are those that it could turn on."""
    if not run.trains:
        return NotCompared(reason="the run does not train")
    if other.measured.step_s is None:
        return NotCompared(reason=f"{other.what} shows no speed")
    # Which modules are recomputed belongs to the recomputation, where that differs.
    apart = {"modules"} if run.layout.recompute != other.layout.recompute else set()
    mine, theirs = ({each.label: each for each in off if each.name not in apart} for off in (levers, other.levers))
    shares = _shares(run)
    off = [_saved(f"+ {name}", mine[name].predicted_gain(shares)) for name in mine if name not in theirs]
    on = [_saved(f"- {name}", -theirs[name].predicted_gain(shares)) for name in theirs if name not in mine]
    own = OwnRun(
        what=other.what,
        software=other.subject.job.framework.name,
        subject=other.subject,
        layout=other.layout,
        step_s=other.measured.step_s,
    )
    return _compared(run, own, [*off, *on])


def _compared(
    run: DiagnosisInput, other: ReferenceRun, levers: Sequence[GapCause], replaced: str = ""
) -> SpeedGap | NotCompared:
    """Split the gap between a run and another; `levers` are causes that its plan does not know."""
    planner, measured_s = run.planner, run.measured.step_s
    subject = PlanSubject(model=planner.model, cluster=run.cluster, job=planner.job)

    def calibration(framework: str) -> Calibration:
        return planner.calibration if framework == planner.job.framework.name else default_calibration(framework)

    causes = list(split_gap(settings_of(subject, run.layout), settings_of(other.subject, other.layout), calibration))
    if not other.states_recompute:
        causes = [_unstated(cause) if cause.name == "recomputation" else cause for cause in causes]
    own = [*_logged(run), *_full_memory(run), *levers]
    planned_s = run.planned.roomy_s * math.prod(cause.factor for cause in own)
    speed = work_of(subject, run.layout) / (measured_s or planned_s)
    for what, each, flops_per_s in (("the run", subject, speed), ("the other run", other.subject, other.flops_per_s)):
        most = each.cluster.gpu.matrix_flops(each.job.precision)
        if flops_per_s > most:
            figures = f"{flops_per_s / 1e12:,.0f} TFLOP/s a GPU, but {each.cluster.gpu.name} does {most / 1e12:,.0f}"
            return NotCompared(reason=f"{what} would have {figures} at most: name its --model and --cluster")
    rest = other.flops_per_s / speed / math.prod(cause.factor for cause in causes)
    for cause in own:
        # What a run is known or expected to lose explains no more than what is left.
        factor = min(cause.factor, max(rest, 1.0))
        causes.append(replace(cause, factor=factor))
        rest /= factor
    causes.append(GapCause(name=SOFTWARE, factor=rest, basis="unexplained", change=replaced))
    causes.sort(key=lambda cause: -abs(math.log(cause.factor)))
    return SpeedGap(other=other, flops_per_s=speed, is_measured=measured_s is not None, causes=tuple(causes))


def _shares(run: DiagnosisInput, **factors: float) -> dict[str, float]:
    """Return the share of each part of the planned step."""
    planner = run.planner
    batch = batch_of([run.layout])
    time = time_with_room(planner.model, run.cluster, planner.job, batch, planner.calibration, **factors)
    return {name: float(part[0] / time.step_s[0]) for name, part in time.parts.items()}


def _saved(name: str, saved: float, change: str = "") -> GapCause:
    return GapCause(name=name, factor=1 / (1 - min(saved, 0.9)), change=change)


def _unstated(cause: GapCause) -> GapCause:
    return replace(cause, change=f"{cause.change} (not stated by the source)")


def _logged(run: DiagnosisInput) -> list[GapCause]:
    """Return what the log shows to slow the run down."""
    figures = {cause.kind: cause.figures for cause in run.measured.causes}
    found = []
    if stall := figures.get(CauseKind.DATA_STALL):
        factor = 1 / (1 - min(positive(stall["share"]) or 0.0, 0.99))
        found.append(GapCause(name="data", factor=factor, basis="measured", through="host", change="waits for data"))
    if straggler := figures.get(CauseKind.STRAGGLER):
        factor = 1 + (positive(straggler["behind"]) or 0.0)
        change = "the slowest rank over the fastest"
        found.append(GapCause(name="straggler", factor=factor, basis="measured", through="host", change=change))
    return found


def _full_memory(run: DiagnosisInput) -> list[GapCause]:
    """Return what the allocator loses where the measured memory is nearly full."""
    factor = run.slowdown(run.device_bytes) if run.measured.peak_bytes is not None else 1.0
    full = f"{run.device_bytes / run.planned.capacity_bytes:.0%} of the GPU's memory in use"
    return [GapCause(name="full memory", factor=factor, through="memory", change=full)] if factor > 1.005 else []
