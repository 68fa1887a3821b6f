"""Layouts that the planner predicts to be faster, without a cause of their own: one change away, or several."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import replace

from zenith_tune.describe.cluster_catalog import catalog_cluster
from zenith_tune.describe.model_catalog import catalog_model, known_models
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.presets.formats import writable, writes

LEAST_SINGLE_GAIN, LEAST_GAIN = 0.05, 0.1
"""Least gains, above those of advice with a cause: a plan is less certain the farther a layout is from the run."""
TOP = 64
"""Number of the fastest layouts to look at."""
SECONDS = "seconds a step"
OF_NODES = ("gpus_per_node", "fast_domain", "fast_link", "node_link")


def single_change(run: DiagnosisInput) -> Advice | None:
    """Advise the fastest layout one change away, where it gains enough."""
    better = run.worthwhile(run.neighbours, least_gain=LEAST_SINGLE_GAIN)
    number = run.likely_s(better) if better else 0.0
    finding = f"the step ({run.planned.bound}) is predicted to be shorter with one size changed"
    return run.advise("single_change", better, number, SECONDS, finding)


def better_layout(run: DiagnosisInput, *, over: float) -> Advice | None:
    """Advise the planner's best, where it is clearly faster than the run and than a change that gains `over`."""
    at_most_s = run.step_s(run.planned) / (1 + over) / (1 + LEAST_GAIN)
    faster = run.origin.faster
    if faster is not None and run.measured.step_s:  # a plan that a measured run beats is no advice
        at_most_s = min(at_most_s, run.step_s(run.planned) * faster.step_s / run.measured.step_s / (1 + LEAST_GAIN))
    pinned: dict[str, int | str] = {"flash": int(run.layout.flash_attention)}
    best = fastest_planned(run, pinned=pinned, is_wanted=run.is_tried, at_most_s=at_most_s)
    if best is None or (1 + run.gain(best)) / (1 + over) - 1 < LEAST_GAIN:
        return None
    untried = "the best layout that was not tried" if run.origin.tried else "the planner's best layout"
    finding = f"{untried} is {best.name}, several sizes changed at once"
    command = emit_command(run, best.layout)
    return run.advise("better_layout", best, run.likely_s(best), SECONDS, finding, command=command)


def fastest_planned(
    run: DiagnosisInput,
    *,
    pinned: dict[str, int | str] | None = None,
    is_wanted: Callable[[Layout], bool] = lambda layout: True,
    at_most_s: float = math.inf,
) -> PlannedLayout | None:
    """Return the fastest layout that fits, with tensor parallelism inside NVLink where possible."""
    inside = SearchSpace().tensor_within(run.cluster.fast_domain)
    # As a plan does, only what fits nowhere inside NVLink leaves it, which is never faster advice.
    for space in (inside, SearchSpace()) if math.isinf(at_most_s) else (inside,):
        framework = run.planner.job.framework.name
        sayable = writable(replace(space, pinned=pinned or {}), run.origin.emit, framework)
        top = TOP + len(run.origin.tried)
        # Where the fastest all exceed the study's memory limit, slower ones that need less are looked at.
        fitting = run.planner.fastest(
            run.layout.global_batch,
            lambda planned: planned.layout not in run.origin.tried and is_wanted(planned.layout) and run.fits(planned),
            at_most_s=at_most_s,
            top=top,
            space=sayable,
            risk=run.risk,
        )
        if fitting:
            return max(fitting, key=run.gain)
    return None


def emit_command(run: DiagnosisInput, layout: Layout) -> str:
    """Return the command that writes a layout, or an empty text where there is none."""
    planner, form = run.planner, run.origin.emit
    job, name = planner.job, planner.model.name
    # A name that loads the model; a shape that a command spells out has none.
    is_known = name in known_models() and catalog_model(name) == planner.model
    model = name if is_known else run.origin.model
    if not writes(form, job.framework.name) or not model or not _is_catalogued(run):
        return ""
    said = {
        "model": model,
        "cluster": f"{run.cluster.gpu.name}x{layout.num_gpus}",
        **({"topology": run.origin.topology} if run.origin.topology else {}),
        "framework": job.framework.name,
        "gbs": str(layout.global_batch),
        "seq": str(job.seq_len),
        **({"precision": job.precision} if job.precision != "bf16" else {}),
        **({"dispatcher": job.dispatcher} if job.dispatcher != "alltoall" else {}),
        "explain": layout_name(layout),
        "emit": form,
    }
    return shlex.join(["zenithtune", "plan", *(word for name, value in said.items() for word in (f"--{name}", value))])


def _is_catalogued(run: DiagnosisInput) -> bool:
    """Tell whether the catalog has such nodes, or does with the links of the topology that the user gave."""
    try:
        known = catalog_cluster(run.cluster.gpu.name, run.cluster.num_gpus)
    except UsageError:
        return False
    return bool(run.origin.topology) or all(getattr(known, name) == getattr(run.cluster, name) for name in OF_NODES)
