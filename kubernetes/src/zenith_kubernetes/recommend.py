"""What a training job in a manifest should ask for and run with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zenith_kubernetes.emit import host_gib
from zenith_kubernetes.manifest import JOB, JobManifest, Json
from zenith_tune.describe.gpu_catalog import gpu_name, match_gpu, node_fields
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import RISK
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.report.dry_run import DryRunListener, dry_run
from zenith_tune.shell.scripts.opened import with_text_closed
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Prediction
from zenith_tune.tuner import PresetTuner
from zenith_tune.units import GIB, count, format_seconds

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""The label by which NVIDIA's device plugin says which GPU a node has."""
MAX_GPUS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A manifest as it is and as it should be, with what the planner predicts of it."""

    before: JobManifest
    after: JobManifest
    gpu: str
    label: str
    """The layout in a few words."""
    planned: PlannedLayout
    own_step_s: float | None
    """The step of the layout that the manifest has, on its own GPUs, where that fits."""
    notes: tuple[str, ...] = ()

    @property
    def patch(self) -> Json:
        """What turns the one into the other: a merge patch of a TrainJob, a strategic one of a Job."""
        old, new = self.before.document, self.after.document
        patch = merge_patch(old, new)
        if self.before.kind == JOB:  # lists of containers are merged by their names
            before, after = (each["spec"]["template"]["spec"]["containers"] for each in (old, new))
            changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
            containers = [{"name": one["name"], **merge_patch(one, other)} for one, other in changed]
            patch["spec"]["template"]["spec"]["containers"] = containers
        return patch

    @property
    def patch_type(self) -> str:
        return "strategic" if self.before.kind == JOB else "merge"

    def __str__(self) -> str:
        job, planned = self.after, self.planned
        where = f"{count(job.nodes or 1, 'node')} with {job.gpus_per_node} x {self.gpu}"
        step = f"{format_seconds(planned.step_s)} a step predicted"
        own = f" (now {format_seconds(self.own_step_s)})" if self.own_step_s else ""
        memory = f"{planned.memory_bytes / planned.capacity_bytes:.0%} of GPU memory"
        risk = f"{planned.oom_probability:.0%} chance of running out of it"
        return f"{job.name or job.kind}: {where}, {self.label}: {step}{own}, {memory}, {risk}"

    def as_json(self) -> Json:
        return {
            "nodes": self.after.nodes,
            "gpus_per_node": self.after.gpus_per_node,
            "gpu": self.gpu,
            "layout": self.label,
            "command": self.after.command,
            "step_s": self.planned.step_s,
            "own_step_s": self.own_step_s,
            "memory_bytes": self.planned.memory_bytes,
            "oom_probability": self.planned.oom_probability,
            "host_memory_bytes": host_gib(self.planned, self.after.gpus_per_node or 1) * GIB,
            "patch_type": self.patch_type,
            "patch": self.patch,
            "notes": list(self.notes),
        }


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return the JSON merge patch (RFC 7386) from one object to another.

    >>> merge_patch({"a": 1, "b": {"c": 2, "d": [3]}}, {"b": {"c": 2, "d": [4]}, "e": 5})
    {'a': None, 'b': {'d': [4]}, 'e': 5}
    """
    patch: Json = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch |= {name: part} if (part := merge_patch(before, value)) else {}
        elif value != before:
            patch[name] = value
    return patch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    own: PlannedLayout | None
    best: PlannedLayout | None
    """None where nothing fits."""
    label: str
    command: str
    notes: tuple[str, ...]


@dataclass(slots=True)
class _First(DryRunListener):
    """The point that a study would try first, which the planner takes for the best."""

    point: Params | None = None
    label: str = ""
    command: str = ""

    def point_would_run(
        self, number: int, label: str, command: str, params: Mapping[str, Value], predicted: Prediction | None
    ) -> None:
        if self.point is None:
            self.point, self.label, self.command = dict(params), label, command


def recommended(
    manifest: JobManifest, *, gpu: str | None = None, gpus: int | None = None, risk: float = RISK, **options: Any
) -> Recommendation:
    """Plan the job of a manifest: on so many GPUs, else on its own, else on the fewest that it fits on.

    `options` are those of a study, such as the preset and its arguments.
    """
    command, gpu = manifest.command, gpu_name(gpu) if gpu else _gpu_of(manifest)
    if command is None:
        problem = f"the {manifest.kind} {manifest.name} runs what its image or runtime says"
        raise UsageError(problem, hint="write the training command into the manifest")
    own = (manifest.nodes or 1) * manifest.gpus_per_node if manifest.gpus_per_node else None
    fixed = started_gpus(command)
    stated = gpus or fixed or own
    per_node = int(node_fields(gpu)["gpus_per_node"])
    for number in _numbers(stated, per_node, is_fixed=bool(gpus or fixed)):
        found = _planned(command, gpu, number, risk, options)
        if found.best is not None:
            break
    else:
        counted = f"{stated} x" if gpus or fixed else f"{number} x or fewer of"
        hint = "give more --gpus" if not fixed else "leave the launcher's numbers to the runtime, or give other ones"
        raise UsageError(f"no layout of the job fits on {counted} {gpu}", hint=hint)
    if fixed not in (None, number):
        problem = f"the command itself starts {fixed} processes, but --gpus is {number}"
        raise UsageError(problem, hint="leave the launcher's numbers to the runtime, or --gpus out")
    first = found if number == own or own is None else _planned(command, gpu, own, risk, options)
    size = min(number, per_node)
    after = manifest.sized(number // size, size).with_memory(host_gib(found.best, size)).with_command(found.command)
    now = first.own if own is not None and first.own is not None and first.own.oom_probability < risk else None
    return Recommendation(
        before=manifest,
        after=after,
        gpu=gpu,
        label=found.label,
        planned=found.best,
        own_step_s=now.step_s if now else None,
        notes=found.notes,
    )


def _gpu_of(manifest: JobManifest) -> str:
    """Return the GPU that the manifest asks its nodes to have."""
    products = [text for name, text in _leaves(manifest.document) if name == PRODUCT_LABEL]
    found = match_gpu(products[0]) if products else None
    if found is None:
        problem = f"the manifest names no GPU that the planner knows by the node selector {PRODUCT_LABEL}"
        raise UsageError(problem, hint="give --gpu h100")
    return found


def _leaves(part: Any) -> Iterator[tuple[str, str]]:
    for name, value in part.items() if isinstance(part, Mapping) else enumerate(part):
        if isinstance(value, Mapping | list):
            yield from _leaves(value)
        else:
            yield str(name), str(value)


def _numbers(stated: int | None, per_node: int, *, is_fixed: bool) -> Iterator[int]:
    """Yield the numbers of GPUs to plan for, those of whole nodes once one is full."""
    if stated is not None:
        yield stated
    number = 1
    while not is_fixed and number <= MAX_GPUS:
        if number > (stated or 0):
            yield number
        number = min(2 * number, per_node) if number < per_node else 2 * number


def _planned(command: str, gpu: str, number: int, risk: float, options: Mapping[str, Any]) -> _Planned:
    tuner = PresetTuner(command, cluster=f"{gpu}x{number}", gpus=number, n_trials=1, baseline=False, **options)
    job, first = tuner.tuned_job(), _First()
    if job.subject is None:
        raise UsageError(f"the job cannot be planned: {job.unplanned}")
    planner = Planner(job.subject.model, job.subject.cluster, job.subject.job)
    try:
        dry_run(tuner.config, job, first)
    except UsageError:  # no point that is worth a trial
        first = _First()
    own, best = (
        None if point is None or (layout := job.layout(point)) is None else planner.evaluate([layout])[0]
        for point in (job.own_point(), first.point)
    )
    if best is not None and first.point is not None and tuner.preset.files(first.point):
        problem = f"preset {tuner.config.preset_name} sets its options in files, which a manifest does not hold"
        raise UsageError(problem, hint="tune the job by zenithtune optimize --kubernetes manifest=FILE")
    fits = best is not None and best.oom_probability < risk
    return _Planned(
        own=own,
        best=best if fits else None,
        label=first.label,
        command=with_text_closed(first.command),
        notes=tuple(tuner.config.warnings()),
    )
