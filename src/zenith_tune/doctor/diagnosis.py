"""What is wrong with a run: every advice that applies, the one with the largest gain first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.diagnosed_run import DiagnosedRun, Measured, RunOrigin, emitted, modules_of_point, tried_layouts
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput, Remedy
from zenith_tune.doctor.memory_advice import full_memory, full_memory_message, has_whole_copies, remedies
from zenith_tune.doctor.planner_advice import better_layout, fastest_planned, single_change
from zenith_tune.doctor.speed_advice import (
    IMPLICIT_DEFAULT,
    SLOW_TENSOR_LINK,
    data_parallel_traffic,
    idle_recompute,
    implicit_default,
    implicit_default_lines,
    needless_recompute,
    pipeline_bubble,
    slow_tensor_link,
    slow_tensor_message,
    small_micro_batch,
)
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import PlannedLayout, changes
from zenith_tune.planner.planner import Planner
from zenith_tune.planner.ways_out import WayOut, way_lines, ways_out
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_gain, format_seconds

MOST_OFF = 0.5
"""Largest relative difference of a measured step from the planned one, for a plan of the right model."""
MODEL, CLUSTER = "model= the one that was trained", "--cluster the one that it ran on"


def plan_mismatch(run: DiagnosisInput) -> str | None:
    """Return why the plan cannot be that of the run, or None where the measured figures allow it."""
    step_s, planned = run.measured.step_s, run.planned
    if step_s is None or run.measured.out_of_memory:
        return None
    off = step_s / run.step_s(planned) - 1
    # A full memory makes a step longer than can be estimated.
    is_explained = off > 0 and run.measured.peak_bytes is not None and full_memory_message(run) is not None
    against = [f"is {abs(off):.0%} off"] if abs(off) > MOST_OFF and not is_explained else []
    # A small error of the plan explains a run that fits: only what is beyond its interval counts against it.
    if planned.memory_interval_bytes[0] > planned.capacity_bytes:
        against.append(f"needs {planned.memory}, although the run succeeded")
    if not against:
        return None
    # What the user said about the run may be mistaken, else what could be said.
    said = [text for text, name in ((MODEL, run.origin.model), (CLUSTER, run.origin.cluster)) if name]
    return f"the plan {' and '.join(against)}: is {', and '.join(said or (MODEL, CLUSTER))}?"


ADVICE: tuple[Callable[[DiagnosisInput], Advice | None], ...] = (
    full_memory,
    slow_tensor_link,
    pipeline_bubble,
    small_micro_batch,
    data_parallel_traffic,
    idle_recompute,
    needless_recompute,
)
"""Functions that each look for one cause; a change without a cause is advised only where none of them finds any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What limits a run, and what to change."""

    run: DiagnosisInput
    advice: tuple[Advice, ...]
    remedies: tuple[Remedy, ...]
    """Ways to need less memory, for a run that does not fit."""
    way_out: PlannedLayout | None = None
    """The fastest layout that fits, where no single change makes the run fit."""
    warnings: tuple[str, ...] = ()
    """Problems without a change that would fix them, one line each."""
    ways_out: tuple[WayOut, ...] = ()
    """Other ways to train the model on these GPUs, where no layout fits."""
    causes: tuple[Cause, ...] = ()
    """Causes that ended the run or keep it waiting, by its log or by its plan."""

    def __repr__(self) -> str:
        return f"Diagnosis({self.run.planned!r}, {len(self.causes)} causes, {len(self.advice)} advised changes)"

    @property
    def can_train(self) -> bool:
        """Whether the run, or a change of it, fits into memory."""
        return self.run.trains or self.way_out is not None or any(remedy.fits for remedy in self.remedies)

    @property
    def is_healthy(self) -> bool:
        return not self.advice and not self.remedies and not self.warnings and not self.causes

    @property
    def all_clear(self) -> str:
        """The figures that show a run without a bottleneck, in one line."""
        run, layout = self.run, self.run.layout
        gain = max((run.gain(each) for each in run.neighbours), default=0.0)
        figures = [f"compute {run.share('compute'):.0%} of a step"]
        shown = (("bubble", "bubble", layout.pp), ("TP", "tp", layout.tp), ("DP", "dp", layout.dp))
        figures += [f"{name} {run.share(part):.0%}" for name, part, ranks in shown if ranks > 1]
        peak = run.device_bytes if run.measured.peak_bytes is None else run.measured.peak_bytes
        figures.append(f"uses {peak / run.planned.capacity_bytes:.0%} of GPU memory")
        best = f"the best single change is predicted to gain {format_gain(gain)}"
        return f"{', '.join(figures)}; {best if gain > 0 else 'no single change is predicted to be faster'}"


def diagnose(run: DiagnosisInput) -> Diagnosis:
    """Look for everything that limits a run."""
    bound = host_bound(run)
    causes = (*run.measured.causes, *([bound] if bound else []))
    return replace(_diagnose(run, is_host_bound=bound is not None), causes=causes)


def _diagnose(run: DiagnosisInput, *, is_host_bound: bool) -> Diagnosis:
    if not run.trains:
        found = remedies(run)
        way_out = None if any(remedy.fits for remedy in found) else fastest_planned(run)
        warnings = (*implicit_default_lines(run), *_tensor_lines(run))
        is_hopeless = way_out is None and not any(remedy.fits for remedy in found)
        others = ways_out(run.planner, risk=run.risk) if is_hopeless else ()
        return Diagnosis(run=run, advice=(), remedies=found, way_out=way_out, ways_out=others, warnings=warnings)
    if not is_host_bound and (mismatch := plan_mismatch(run)) is not None:
        # Nothing is advised by a plan that is not the run's.
        warnings = (mismatch, *implicit_default_lines(run), *_tensor_lines(run))
        return Diagnosis(run=run, advice=(), remedies=(), warnings=warnings)
    advice = _advice(run)
    return Diagnosis(run=run, advice=tuple(advice), remedies=(), warnings=tuple(_warnings(run, advice)))


def diagnose_run(run: DiagnosedRun, *, risk: float, calibration: Calibration | None) -> Diagnosis:
    """Look for everything that limits a run, by the planner's estimates."""
    planner = Planner(run.subject.model, run.subject.cluster, run.subject.job, calibration or run.calibration)
    return diagnose(
        DiagnosisInput.of(
            planner,
            run.layout,
            measured=run.measured,
            risk=risk,
            recompute_modules=run.recompute_modules,
            origin=run.origin,
        )
    )


def _advice(run: DiagnosisInput) -> list[Advice]:
    """Return what applies, the largest gain first, after sizes that were not asked for: they affect all the rest."""
    found = [advice for look in ADVICE if (advice := look(run)) is not None]
    if not found and (advice := single_change(run)) is not None:
        found.append(advice)
    if (faster := run.origin.faster) is not None and run.measured.step_s:
        # What the study measured already is worth more than what is predicted to be slower than that.
        found = [advice for advice in found if run.likely_s(advice.planned) < faster.step_s]
    most = max((advice.gain for advice in found), default=0.0)
    if (advice := better_layout(run, over=most)) is not None:
        found.append(advice)
    return [*implicit_default(run), *sorted(found, key=lambda advice: -advice.gain)]


def _warnings(run: DiagnosisInput, advice: list[Advice]) -> Iterator[str]:
    names = {each.name for each in advice}
    if (faster := run.origin.faster) is not None and run.measured.step_s:
        speed = f"{format_seconds(faster.step_s)} a step, {run.measured.step_s / faster.step_s:.2f}x this run"
        start = f"; run it by {faster.command}" if faster.command else ""
        yield f"{faster.name} of the study is faster: {speed} ({faster.label}){start}"
    if IMPLICIT_DEFAULT not in names:
        yield from implicit_default_lines(run)
    if SLOW_TENSOR_LINK not in names:
        yield from _tensor_lines(run)
    if (full := full_memory_message(run)) is not None and "full_memory" not in names:
        yield f"{full}; no single change leaves room and gains: more GPUs would"


def _tensor_lines(run: DiagnosisInput) -> Iterator[str]:
    if (message := slow_tensor_message(run)) is not None:
        yield f"{message}; keep it within what NVLink joins, with pipeline stages or data parallelism across"


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosis line by line, without the run's own figures."""
    found = [*cause_lines(diagnosis.causes), *diagnosis.warnings]
    if diagnosis.remedies:
        return [*found, *_memory_lines(diagnosis)]
    if diagnosis.is_healthy:
        return [f"no bottleneck found: {diagnosis.all_clear}"]
    advised = (_advice_lines(diagnosis.run, advice, number) for number, advice in enumerate(diagnosis.advice, 1))
    return [*found, *(line for lines in advised for line in lines)]


def cause_lines(causes: Iterable[Cause]) -> list[str]:
    """Return each cause with its evidence and what to do."""
    found: list[str] = []
    for cause in causes:
        found.append(f"{cause.kind.replace('_', ' ')}: {cause.finding}")
        found += [f"   | {line}" for line in cause.evidence]
        found += [f"   do: {action}" for action in cause.actions]
    return found


def _advice_lines(run: DiagnosisInput, advice: Advice, number: int) -> list[str]:
    before, after = format_seconds(run.likely_s(run.planned)), format_seconds(run.likely_s(advice.planned))
    gain = f"{format_gain(advice.gain)} speed ({before} -> {after} a step)"
    found = [
        f"{number}. {advice.finding}",
        f"   change {advice.change}",
        f"   predicted {gain}; {advice.planned.memory}, {advice.planned.oom_probability:.0%} OOM",
    ]
    found += [f"   but {advice.caution}"] if advice.caution else []
    return [*found, *([f"   written by: {advice.command}"] if advice.command else [])]


def _memory_lines(diagnosis: Diagnosis) -> list[str]:
    run = diagnosis.run
    if run.measured.out_of_memory:
        is_quoted = not run.measured.cause or bool(run.measured.causes)
        head = "it ran out of memory" if is_quoted else f"it ran out of memory ({run.measured.cause})"
    else:
        head = f"it is {run.planned.oom_probability:.0%} likely to run out of memory"
    found = [f"{head}; what helps, and what it costs:", *map(_remedy, diagnosis.remedies)]
    if (out := diagnosis.way_out) is not None:
        change = changes(run.layout, out.layout)
        figures = f"{format_seconds(out.step_s)} a step, {out.memory}, {out.oom_probability:.0%} OOM"
        beyond = out.layout.tp > run.cluster.fast_domain
        inside = f", and nothing fits with TP within {run.cluster.fast_domain}" if beyond else ""
        fits = f"the fastest layout that fits is {out.name}: {figures} ({change})"
        found.append(f"no single change is enough{inside}; {fits}")
    elif not any(remedy.fits for remedy in diagnosis.remedies):
        larger = "take more of them, or larger ones (zenithtune plan says how many)"
        if has_whole_copies(run):
            whole = "every GPU holds the whole model, however many there are"
            larger = f"{whole}: shard it with FSDP or ZeRO-3, or take larger ones"
        found.append(f"no layout fits on these GPUs: {larger}")
        found += way_lines(diagnosis.ways_out)
    return found


def _remedy(remedy: Remedy) -> str:
    if remedy.planned is None or remedy.cost is None:
        return f"  {'unavailable':<14} {remedy.name}: {remedy.why_not}"
    risk = f"{remedy.planned.oom_probability:.0%} OOM"
    figures = f"{remedy.planned.memory}, {risk}, {format_gain(remedy.cost)} time"
    return f"  {'fits' if remedy.fits else 'not enough':<14} {remedy.name}: {remedy.change} ({figures})"


def study_diagnosis(
    preset: CompletePreset, command: str, study: Study, calibration: Calibration | None = None
) -> list[str]:
    """Return what limits the fastest run of a study, or the first that ran out of memory where none went well."""
    trial = study.fastest or next((each for each in study.trials if each.outcome is Outcome.OOM), None)
    if trial is None:
        return []
    try:
        subject = preset.subject(command)
        point = trial.params or preset.own_point(command)
        layout = preset.planned_layout(command, point) if point else None
    except UsageError:  # model or cluster are not known, which the study's own notes say
        return []
    if subject is None or layout is None:
        return []
    origin = RunOrigin(
        emit=emitted(PresetRegistry.name_of(type(preset)), command),
        unasked=() if trial.params else tuple(preset.implicit_defaults(command)),
        tried=tried_layouts(preset, command, [each.params for each in study.runs], but=layout),
        memory_limit_bytes=study.memory_limit_bytes,
        tries=preset.tries,
    )
    return trial_diagnosis(subject, layout, trial, origin, calibration)


def trial_diagnosis(
    subject: PlanSubject,
    layout: Layout,
    trial: Trial,
    origin: RunOrigin | None = None,
    calibration: Calibration | None = None,
) -> list[str]:
    """Return what limits a trial of a layout, and what to change; nothing where that cannot be estimated."""
    is_out = trial.outcome is Outcome.OOM
    measured = Measured(
        step_s=None if is_out else trial.step_s,
        peak_bytes=None if is_out else trial.peak_memory_bytes,
        out_of_memory=is_out,
    )
    try:
        planner = Planner(subject.model, subject.cluster, subject.job, calibration)
        modules = modules_of_point(trial.params)
        run = DiagnosisInput.of(planner, layout, measured=measured, recompute_modules=modules, origin=origin)
    except UsageError:  # the run is the user's own, and may break rules that a plan needs
        return []
    return diagnosis_lines(diagnose(run))


LEAST_SHARE = 0.25
"""Least share of a planned step that is host overhead, for the run to count as host-bound."""
LEAST_SHARE_OF_SLOW = 0.1
"""Least share of host overhead where the run was far slower than planned, which a slower host explains."""
FAR_OVER = 1.5
ACTIONS = (
    "larger micro-batches, less tensor parallelism, fewer and larger layers on each GPU",
    "CUDA graphs (--cuda-graph-impl local for Megatron-LM) or torch.compile, so that a step is launched at once",
    "set CUDA_DEVICE_MAX_CONNECTIONS=1 only where tensor parallelism needs it; bind ranks to the cores near their GPU",
    "collect garbage by hand (--manual-gc), and log less often",
)


def host_bound(run: DiagnosisInput) -> Cause | None:
    """Return how much of a step waits for the host, by the plan, or measured far over a plan that the host limits."""
    share, step_s = run.share("overhead"), run.measured.step_s
    # Beyond NVLink the overhead includes waits for other nodes, which is a finding of its own.
    if run.layout.tp > run.cluster.fast_domain or not run.trains:
        return None
    planned_s = run.step_s(run.planned)
    is_slow = step_s is not None and step_s > FAR_OVER * planned_s
    if share < (LEAST_SHARE_OF_SLOW if is_slow else LEAST_SHARE):
        return None
    evidence = [f"planned: {share:.0%} of a step of {format_seconds(planned_s)} is host overhead"]
    if step_s is not None:
        evidence.append(f"measured: {format_seconds(step_s)} a step, {step_s / planned_s:.1f} times the plan")
    return Cause(
        kind=CauseKind.HOST_BOUND,
        finding=f"the GPU waits for the host: launching layers takes longer than computing them, {share:.0%} of a step",
        evidence=tuple(evidence),
        actions=ACTIONS,
        figures={"share": share, **({"over_plan": step_s / planned_s} if step_s is not None else {})},
    )
