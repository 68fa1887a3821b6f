"""What `zenithtune plan` is asked for, read and checked before any heavy part is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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

Options = dict[str, Any]
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
    return PlanRequest(
        model=model,
        cluster=cluster,
        job=job,
        space=_narrowed(space, framework.name, options["emit"]),
        layout=_layout(cluster, options),
        calibration=options["calibration"],
    )


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
