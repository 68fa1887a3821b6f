"""The command `zenithtune plan`: the best layouts on paper, without a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_spec import ModelSpec
    from zenith_tune.emit.emission import Emission
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.layouts.search_space import SearchSpace
    from zenith_tune.planner import Planner
    from zenith_tune.planning.plan import Plan
    from zenith_tune.planning.planned_layout import PlannedLayout
    from zenith_tune.planning.what_if import WhatIf

Options = dict[str, Any]
EMIT = ("megatron", "ms-swift", "deepspeed", "accelerate")
PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")
LIMITS = ("tp", "pp", "cp", "mbs")


@click.command(short_help="Find the best layouts on paper: step time, memory and risk, without a GPU.")
@click.option("--model", required=True, metavar="NAME|PATH", help="A model of the catalog, or its config.json.")
@click.option("--cluster", required=True, metavar="NAME|PATH", help="GPUs, e.g. h100x64 or 8xH200; local; or a file.")
@click.option("--gbs", required=True, type=click.IntRange(min=1), metavar="N", help="Global batch, in samples.")
@click.option("--seq", required=True, type=click.IntRange(min=1), metavar="N", help="Sequence length, in tokens.")
@click.option("--framework", metavar="NAME", help="What runs it. [default: megatron, or what --emit is for]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of matrix work.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Layouts to show.")
@click.option("--explain", metavar="LAYOUT", help="Explain one layout, e.g. 'TP8 PP4 mbs1 SP selective'.")
@click.option("--pareto", is_flag=True, help="Also show what no layout beats in time, memory and GPUs together.")
@click.option("--what-if", metavar="K=V,...", help="Plan again with changes: mem=+8 (GiB), gpus=128, seq=, gbs=.")
@click.option("--emit", type=click.Choice(EMIT), help="Write the best layout, or the explained one, for a framework.")
@click.option("--output", type=click.Path(path_type=Path), help="--emit: folder to write to. [default: print]")
@click.option("--fix", "pinned", metavar="K=V,...", help="Values that are given, e.g. tp=8,pp=4,recompute=selective.")
@click.option("--max-tp", type=click.IntRange(min=1), metavar="N", help="Largest tensor-parallel size. [default: 64]")
@click.option("--max-pp", type=click.IntRange(min=1), metavar="N", help="Most pipeline stages.")
@click.option("--max-cp", type=click.IntRange(min=1), metavar="N", help="Largest context-parallel size. [default: 64]")
@click.option("--max-mbs", type=click.IntRange(min=1), metavar="N", help="Largest micro-batch.")
@click.option("--space", type=click.Choice(["default", "all"]), default="default", show_default=True,
              help="all: also what is never better on paper.")  # fmt: skip
@click.option("--risk", type=click.FloatRange(0, 1, min_open=True), default=0.3, show_default=True, metavar="P",
              help="Leave out what runs out of memory with this probability or more.")  # fmt: skip
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Coefficients fitted to measured runs. [default: built in]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
def plan(**options: Any) -> int:
    """Rank every legal layout of a training job by its predicted step time, with the risk of running out of memory.

    \b
    zenithtune plan --model llama3-70b --cluster h100x64 --gbs 512 --seq 8192
    zenithtune plan --model ./config.json --cluster 8xH200 --gbs 64 --seq 4096 --emit megatron
    """
    request = _request(options)
    return _explain(request, options) if request.layout is not None else _plan(request, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """Hold what was asked for, read and checked before any heavy part is loaded."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    space: SearchSpace
    layout: Layout | None
    """The layout to explain."""
    calibration: Path | None

    def planner(self) -> Planner:
        """Return the planner."""
        from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration
        from zenith_tune.planner import Planner

        if self.calibration is not None:
            calibration = load_calibration(self.calibration)
        else:
            calibration = default_calibration(self.job.framework.name)
        return Planner(self.model, self.cluster, self.job, calibration)


def _request(options: Options) -> _Request:
    from zenith_tune.describe.cluster_catalog import load_cluster
    from zenith_tune.describe.framework_catalog import load_framework
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_catalog import load_model
    from zenith_tune.planning.what_if import parse_changes

    _refuse_contradictions(options)
    space = _space(options)
    if options["what_if"] is not None:
        parse_changes(options["what_if"])
    framework = load_framework(options["framework"] or _framework(options["emit"]))
    model, cluster = load_model(options["model"]), load_cluster(options["cluster"])
    job = JobSpec(seq_len=options["seq"], framework=framework, precision=options["precision"])
    return _Request(
        model=model,
        cluster=cluster,
        job=job,
        space=_narrowed(space, framework.name, options),
        layout=_layout(cluster, options),
        calibration=options["calibration"],
    )


def _refuse_contradictions(options: Options) -> None:
    if options["output"] is not None and options["emit"] is None:
        raise UsageError("--output is where --emit writes: give --emit too, or leave it out")
    if options["explain"] is None:
        return
    for name in ("pareto", "what_if", "pinned"):
        if options[name]:
            option = "--fix" if name == "pinned" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is about all layouts and --explain about one: leave one of them out")


def _space(options: Options) -> SearchSpace:
    from zenith_tune.layouts.layout_name import parse_values
    from zenith_tune.layouts.search_space import SearchSpace

    pinned = parse_values(options["pinned"], what="--fix") if options["pinned"] is not None else {}
    limits = {name: options[f"max_{name}"] for name in LIMITS if options[f"max_{name}"] is not None}
    return SearchSpace.named(options["space"], max_sizes=limits, pinned=pinned)


def _narrowed(space: SearchSpace, framework: str, options: Options) -> SearchSpace:
    if options["emit"] is None:
        return space
    from zenith_tune.emit.formats import format_named

    return format_named(options["emit"]).narrowed(space, framework)


def _framework(emit: str | None) -> str:
    if emit is None:
        return "megatron"
    from zenith_tune.emit.formats import format_named

    return format_named(emit).framework


def _layout(cluster: ClusterSpec, options: Options) -> Layout | None:
    if options["explain"] is None:
        return None
    from zenith_tune.layouts.layout_name import parse_layout

    return parse_layout(options["explain"], num_gpus=cluster.num_gpus, global_batch=options["gbs"])


def _plan(request: _Request, options: Options) -> int:
    from zenith_tune.planning.dead_end import DeadEnd

    gbs, num_gpus = options["gbs"], request.cluster.num_gpus
    model, job, space = request.model, request.job, request.space
    DeadEnd(model=model, job=job, num_gpus=num_gpus, global_batch=gbs, space=space).refuse()
    planner, bounds = request.planner(), {"space": space, "risk": options["risk"]}
    what_if = None
    if options["what_if"] is not None:
        what_if = planner.what_if(gbs, options["what_if"], top=options["top"], **bounds)
    plan = what_if.before if what_if else planner.plan(gbs, top=options["top"], **bounds)
    points = planner.pareto(gbs, **bounds) if options["pareto"] else None
    emission = _emission(planner, plan.best[0].layout, options) if plan.best else None
    if options["as_json"]:
        _print_json(_plan_object(plan, what_if, points), emission)
    else:
        _report(planner, plan, what_if, points)
        _print_emission(emission, options)
    return 0 if plan.best else 1


def _plan_object(plan: Plan, what_if: WhatIf | None, points: list[PlannedLayout] | None) -> dict[str, Any]:
    from zenith_tune.report import plan_json

    shown = plan_json.what_if_object(what_if) if what_if else plan_json.plan_object(plan)
    return shown if points is None else {**shown, "pareto": [plan_json.planned_object(point) for point in points]}


def _report(planner: Planner, plan: Plan, what_if: WhatIf | None, points: list[PlannedLayout] | None) -> None:
    from zenith_tune.report.plan_report import PlanReport

    report = PlanReport()
    report.plan(plan, planner.stages(plan.best[0].layout) if plan.best else ())
    if points is not None:
        report.pareto(points)
    if what_if is not None:
        report.what_if(what_if)


def _explain(request: _Request, options: Options) -> int:
    from zenith_tune.report.plan_json import explanation_object
    from zenith_tune.report.plan_report import PlanReport

    assert request.layout is not None
    planner = request.planner()
    explanation = planner.explain(request.layout, risk=options["risk"])
    emission = None if explanation.broken else _emission(planner, request.layout, options)
    if options["as_json"]:
        _print_json(explanation_object(explanation), emission)
    else:
        PlanReport().explanation(explanation)
        _print_emission(emission, options)
    return 1 if explanation.broken else 0


def _emission(planner: Planner, layout: Layout, options: Options) -> Emission | None:
    if options["emit"] is None:
        return None
    from zenith_tune.emit.emission import Target
    from zenith_tune.emit.formats import format_named

    target = Target(layout=layout, model=planner.model, cluster=planner.cluster, job=planner.job)
    emission = format_named(options["emit"]).write(target)
    if options["output"] is not None:
        _write(emission, options["output"])
    return emission


def _write(emission: Emission, folder: Path) -> None:
    path = folder / emission.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(emission.text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be written ({error.strerror}): give another folder") from None
    if path.suffix == ".sh":
        path.chmod(path.stat().st_mode | 0o111)


def _print_emission(emission: Emission | None, options: Options) -> None:
    if emission is None:
        return
    click.echo()
    for note in emission.notes:
        click.echo(f"note: {note}")
    if options["output"] is not None:
        click.echo(f"written: {options['output'] / emission.file_name}")
    else:
        click.echo(emission.text, nl=False)


def _print_json(shown: dict[str, Any], emission: Emission | None) -> None:
    if emission is not None:
        shown["emit"] = {"file_name": emission.file_name, "text": emission.text, "notes": list(emission.notes)}
    click.echo(json.dumps(shown, allow_nan=False))
