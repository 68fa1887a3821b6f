"""A layout of the planner's that is clearly faster than the run, several sizes changed at once."""

from __future__ import annotations

import shlex
from dataclasses import replace

from zenith_tune.describe.cluster_catalog import catalog_cluster
from zenith_tune.describe.model_catalog import catalog_model, known_models
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.plan import PlannedLayout, changes
from zenith_tune.presets.formats import FRAMEWORKS, format_named

LEAST_GAIN = 0.1
"""More than for one change: a plan is less sure of layouts that are far from what was measured."""
TOP = 8


def better_layout(case: DiagnosisInput, *, over: float) -> Advice | None:
    """Return the planner's best, where it is clearly faster than the run and than a change that gains `over`."""
    best = fastest_planned(case, pinned={"flash": int(case.layout.flash_attention)})
    if best is None or (1 + case.gain(best)) / (1 + over) - 1 < LEAST_GAIN:
        return None
    return Advice(
        name="better_layout",
        number=case.step_s(best),
        unit="seconds a step",
        finding=f"the planner's best layout is {best.name}, several sizes changed at once",
        change=changes(case.layout, best.layout),
        planned=best,
        gain=case.gain(best),
        command=emit_command(case, best.layout),
    )


def fastest_planned(case: DiagnosisInput, *, pinned: dict[str, int | str] | None = None) -> PlannedLayout | None:
    """Return the fastest layout of all that fits; tensor parallelism inside NVLink where that goes."""
    for space in (SearchSpace(max_tp=case.cluster.fast_domain), SearchSpace()):
        sayable = _sayable(case, replace(space, pinned=pinned or {}))
        top = TOP + len(case.origin.tried)
        try:
            best = case.planner.plan(case.layout.global_batch, top=top, risk=case.risk, space=sayable).best
        except UsageError:  # no layout is legal, which is not what was asked
            continue
        fitting = [planned for planned in best if planned.layout not in case.origin.tried and case.fits(planned)]
        if fitting:
            return max(fitting, key=case.gain)
    return None


def _sayable(case: DiagnosisInput, space: SearchSpace) -> SearchSpace:
    """Return the part of a space that can be written down for what runs the job."""
    form, framework = case.origin.emit, case.planner.job.framework.name
    return format_named(form).narrowed(space, framework) if framework in FRAMEWORKS.get(form, ()) else space


def emit_command(case: DiagnosisInput, layout: Layout) -> str:
    """Return the command that writes a layout down, or nothing where it cannot be said in one."""
    planner, form = case.planner, case.origin.emit
    job, model = planner.job, _model(case)
    machines = f"{case.cluster.gpu.name}x{layout.num_gpus}"
    if job.framework.name not in FRAMEWORKS.get(form, ()) or not model or not _is_catalogued(case):
        return ""
    said = {
        "model": model,
        "cluster": machines,
        "framework": job.framework.name,
        "gbs": str(layout.global_batch),
        "seq": str(job.seq_len),
        **({"precision": job.precision} if job.precision != "bf16" else {}),
        **({"dispatcher": job.dispatcher} if job.dispatcher != "alltoall" else {}),
        "explain": layout_name(layout),
        "emit": form,
    }
    return shlex.join(["zenithtune", "plan", *(word for name, value in said.items() for word in (f"--{name}", value))])


def _model(case: DiagnosisInput) -> str:
    """Return a name that loads the model again; a shape that a command spells out has none."""
    model = case.planner.model
    if model.name in known_models() and catalog_model(model.name) == model:
        return model.name
    return case.origin.model


def _is_catalogued(case: DiagnosisInput) -> bool:
    """Tell whether the catalog has such nodes; how their GPUs are linked is nothing that a file says."""
    try:
        known = catalog_cluster(case.cluster.gpu.name, case.cluster.num_gpus)
    except UsageError:
        return False
    return known.gpus_per_node == case.cluster.gpus_per_node
