"""What `zenithtune plan` is asked for, read and checked before any heavy part is loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from zenith_tune.cli.options import Options
from zenith_tune.errors import UsageError
from zenith_tune.presets.formats import FRAMEWORKS, refuse_framework

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_spec import ModelSpec
    from zenith_tune.estimate.calibration import Calibration
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.layouts.search_space import SearchSpace
    from zenith_tune.planner.planner import Planner

BOUNDED = ("tp", "pp", "cp", "mbs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Hold what was asked for."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    space: SearchSpace
    layout: Layout | None
    """The layout to explain."""
    calibration: Path | None
    tensor_reason: str = ""
    """How large the links of the nodes let tensor parallelism be, where they were looked at."""
    may_leave_island: bool = False
    """Whether larger sizes of tensor parallelism than NVLink joins are planned where nothing else fits."""

    def within_island(self, emit: str | None) -> Self:
        """Keep tensor parallelism inside what NVLink joins."""
        from zenith_tune.presets.formats import format_named

        space = replace(self.space, max_tp=min(self.space.max_tp, self.cluster.fast_domain))
        may_leave = emit is None or format_named(emit).tensor_across_nodes
        return replace(self, space=space, may_leave_island=may_leave)

    def beyond_island(self) -> Self:
        """Let tensor parallelism be of any size, because nothing fits inside what NVLink joins."""
        known = f"{self.tensor_reason}; " if self.tensor_reason else "tensor parallelism: "
        reason = f"{known}nothing fits within {self.space.max_tp}, so that larger sizes are planned too"
        space = replace(self.space, max_tp=type(self.space)().max_tp)
        return replace(self, space=space, tensor_reason=reason, may_leave_island=False)

    def planner(self) -> Planner:
        """Return the planner."""
        from zenith_tune.planner.planner import Planner

        return Planner(self.model, self.cluster, self.job, self._calibration())

    def _calibration(self) -> Calibration | None:
        if self.calibration is None:
            return None
        from zenith_tune.calibrate.calibration_file import load_calibration

        calibration, framework = load_calibration(self.calibration), self.job.framework.name
        if calibration.framework != framework:
            what = f"{self.calibration} was fitted to runs of {calibration.framework}"
            click.echo(f"warning: {what}, but the plan is for {framework}: its figures may be off", err=True)
        return calibration


def read_request(options: Options) -> PlanRequest:
    """Return what the options of the command ask for."""
    from zenith_tune.describe.cluster_catalog import load_cluster
    from zenith_tune.describe.framework_spec import load_framework
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_catalog import load_model
    from zenith_tune.planner.what_if import parse_changes

    _refuse_contradictions(options)
    space = _space(options)
    if options["what_if"] is not None:
        parse_changes(options["what_if"])
    framework = load_framework(options["framework"] or _framework(options["emit"]))
    if options["emit"] is not None:
        refuse_framework(options["emit"], framework.name)
    model, cluster = load_model(options["model"]), load_cluster(options["cluster"])
    job = JobSpec(
        seq_len=options["seq"],
        framework=framework,
        precision=options["precision"],
        dispatcher=options["dispatcher"],
    )
    request = PlanRequest(
        model=model,
        cluster=cluster,
        job=job,
        space=_narrowed(space, framework.name, options["emit"]),
        layout=_layout(cluster, options),
        calibration=options["calibration"],
    )
    return _linked(request, options)


def _linked(request: PlanRequest, options: Options) -> PlanRequest:
    """Return the request with tensor parallelism bounded by how the nodes are linked, unless a size is given."""
    from zenith_tune.describe.topology import read_topology, tensor_reason, with_topology

    path = options["topology"]
    topology = read_topology(path) if path is not None else None
    if topology is not None:
        request = replace(request, cluster=with_topology(request.cluster, topology, path.name))
    if topology is not None or options["cluster"].strip().lower() == "local":  # what was looked at is reported
        request = replace(request, tensor_reason=tensor_reason(request.cluster, topology))
    is_given = options["max_tp"] is not None or "tp" in request.space.pinned
    return request if is_given else request.within_island(options["emit"])


def _refuse_contradictions(options: Options) -> None:
    if options["output"] is not None and options["emit"] is None:
        raise UsageError("--output is where --emit writes", hint="give --emit too, or leave it out")
    if options["explain"] is None:
        return
    for name in ("pareto", "what_if", "pinned"):
        if options[name]:
            option = "--fix" if name == "pinned" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is about all layouts and --explain about one", hint="leave one of them out")


def _space(options: Options) -> SearchSpace:
    from zenith_tune.layouts.layout import parse_values
    from zenith_tune.layouts.search_space import SearchSpace

    pinned = parse_values(options["pinned"], what="--fix") if options["pinned"] is not None else {}
    limits = {name: options[f"max_{name}"] for name in BOUNDED if options[f"max_{name}"] is not None}
    return SearchSpace.named(options["space"], max_sizes=limits, pinned=pinned)


def _narrowed(space: SearchSpace, framework: str, emit: str | None) -> SearchSpace:
    if emit is None:
        return space
    from zenith_tune.presets.formats import format_named

    return format_named(emit).narrowed(space, framework)


def _framework(emit: str | None) -> str:
    return FRAMEWORKS[emit][0] if emit is not None else "megatron"


def _layout(cluster: ClusterSpec, options: Options) -> Layout | None:
    if options["explain"] is None:
        return None
    from zenith_tune.layouts.layout import parse_layout

    return parse_layout(options["explain"], num_gpus=cluster.num_gpus, global_batch=options["gbs"])
