"""The command `zenithtune plan`: the best layouts on paper, without a GPU."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from zenith_tune.cli.plan_request import Options, PlanRequest, read_request
from zenith_tune.cli.probe import MAX_PROBES, NUM_STEPS
from zenith_tune.describe.job_spec import DISPATCHERS
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import MAX_BATCH, MAX_SEQ, RISK
from zenith_tune.presets.formats import FRAMEWORKS

if TYPE_CHECKING:
    from zenith_tune.describe.topology import Topology
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.planner.plan import Plan, PlannedLayout
    from zenith_tune.planner.planner import Planner
    from zenith_tune.planner.what_if import WhatIf
    from zenith_tune.presets.emission import Emission
    from zenith_tune.report.plan.text import PlanReport

FORMATS = tuple(FRAMEWORKS)
OF_THE_JOB = ("model", "gbs", "seq")
"""What a plan must be told, unless a training command tells it."""
PROBED = ("model", "cluster", "gbs", "risk", "calibration", "probe", "as_json", "debug", "command")
"""What a plan with --probe takes; all else the command says."""
PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")


def _refuse_mimo(context: click.Context, parameter: click.Parameter, command: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command whose modules have layouts of their own before any option is missed: its preset plans it."""
    if command:
        from zenith_tune.presets.mimo.preset import MimoPreset

        if MimoPreset.recognises(shlex.join(command)):
            problem = (
                "a plan has one layout for the whole model, but the command trains modules with layouts of their own"
            )
            raise UsageError(problem, hint="take zenithtune optimize --preset mimo --dry-run -- COMMAND")
    return command


@click.command(short_help="Find the best layouts on paper: step time, memory and risk, without a GPU.")
@click.option("--model", metavar="NAME|PATH", help="A model of the catalog, or its config.json.")
@click.option("--cluster", required=True, metavar="NAME|PATH", help="GPUs, e.g. h100x64 or 8xH200; local; or a file.")
@click.option("--topology", type=click.Path(path_type=Path), metavar="FILE",
              help="What `nvidia-smi topo -m` prints on a node: TP stays where NVLink joins its GPUs.")  # fmt: skip
@click.option("--gbs", type=click.IntRange(1, MAX_BATCH), metavar="N", help="Global batch, in samples.")
@click.option("--seq", type=click.IntRange(1, MAX_SEQ), metavar="N", help="Sequence length.")
@click.option("--framework", metavar="NAME", help="What runs it. [default: megatron, or what --emit is for]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of matrix work.")
@click.option("--dispatcher", type=click.Choice(DISPATCHERS), default="alltoall", show_default=True,
              help="How tokens reach their experts; flex: DeepEP.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Layouts to show.")
@click.option("--explain", metavar="LAYOUT", help="Explain one layout, e.g. 'TP8 PP4 mbs1 SP selective'.")
@click.option("--pareto", is_flag=True, help="Also show what no layout beats in time, memory and GPUs together.")
@click.option("--what-if", metavar="K=V,...", help="Plan again with changes: mem=+8 (GiB), gpus=128, seq=, gbs=.")
@click.option(
    "--emit", type=click.Choice(FORMATS), help="Write the best layout, or the explained one, for a framework."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="--emit: folder to write to. [default: stdout]",
)
@click.option("--fix", "pinned", metavar="K=V,...", help="Values that are given, e.g. tp=8,pp=4,recompute=selective.")
@click.option("--max-tp", type=click.IntRange(min=1), metavar="N", help="Largest tensor-parallel size. [default: 64]")
@click.option("--max-pp", type=click.IntRange(min=1), metavar="N", help="Most pipeline stages.")
@click.option("--max-cp", type=click.IntRange(min=1), metavar="N", help="Largest context-parallel size. [default: 64]")
@click.option("--max-mbs", type=click.IntRange(min=1), metavar="N", help="Largest micro-batch.")
@click.option("--space", type=click.Choice(["default", "all"]), default="default", show_default=True,
              help="all: also what is never better on paper.")  # fmt: skip
@click.option("--risk", type=click.FloatRange(0, 1, min_open=True), default=RISK, show_default=True, metavar="P",
              help="Leave out what runs out of memory with this probability or more.")  # fmt: skip
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Coefficients fitted to measured runs. [default: built in]",
)
@click.option("--probe", type=click.IntRange(1, MAX_PROBES), metavar="K",
              help="Run single ranks of the best K layouts on this machine's GPU, and rank them again.")  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write the plan as one HTML page.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", is_eager=True, callback=_refuse_mimo
)
def plan(command: tuple[str, ...], **options: Any) -> int:
    """Rank every legal layout of a training job by its predicted step time, with the risk of running out of memory.

    \b
    zenithtune plan --model llama3-70b --cluster h100x64 --gbs 512 --seq 8192
    zenithtune plan --model ./config.json --cluster 8xH200 --gbs 64 --seq 4096 --emit megatron
    zenithtune plan --cluster h200x64 --probe 3 -- bash train.sh
    """
    if math.isnan(options["risk"]):
        raise UsageError("--risk must be a probability above 0 and up to 1, but got nan", hint="give another")
    if options["probe"] is not None:
        return _probe(command, options)
    if options["html"] is not None:
        _refuse_page(options)
    if command:
        raise UsageError("a training command is what --probe runs", hint="give --probe K, or leave the command out")
    for name in OF_THE_JOB:
        if options[name] is None:
            raise click.MissingParameter(param_hint=f"'--{name}'", param_type="option")
    request = read_request(options)
    if options["topology"] is not None:
        request = _linked(request, options)
    elif options["cluster"].strip().lower() == "local":
        request = _within_island(request, options, None)
    return _explain(request, options) if request.layout is not None else _plan(request, options)


def _probe(command: tuple[str, ...], options: Options) -> int:
    """Plan by the command itself, which says what is trained, and let single ranks of the best layouts run."""
    from zenith_tune.cli.probe import run_probe

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in PROBED and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            problem = f"--probe plans what the command says, of which {parameter.opts[0]} is no part"
            raise UsageError(problem, hint="leave it out")
    asked = {"layouts": (), "top": options["probe"], "gpus": None, "vocab": None, "timeout": None}
    return run_probe(command, {**options, **asked, "steps": NUM_STEPS, "output_dir": None})


def _linked(request: PlanRequest, options: Options) -> PlanRequest:
    """Return the request with its nodes linked as the matrix says, and tensor parallelism inside what NVLink joins."""
    from zenith_tune.describe.topology import read_topology, with_topology

    path = options["topology"]
    topology = read_topology(path)
    cluster = with_topology(request.cluster, topology, path.name)
    return _within_island(replace(request, cluster=cluster), options, topology)


def _within_island(request: PlanRequest, options: Options, topology: Topology | None) -> PlanRequest:
    """Return the request with tensor parallelism inside what NVLink joins, and keep the reason for those who read."""
    from zenith_tune.describe.topology import tensor_reason

    options["reason"] = tensor_reason(request.cluster, topology)
    if options["max_tp"] is not None:  # one that is given is meant
        return request
    return replace(request, space=replace(request.space, max_tp=min(request.space.max_tp, request.cluster.fast_domain)))


def _unbound(request: PlanRequest, options: Options, plan: Plan) -> PlanRequest | None:
    """Return the request with tensor parallelism of any size, where nothing fits inside what NVLink joins."""
    if plan.best or "reason" not in options or options["max_tp"] is not None:
        return None
    options["reason"] += f"; nothing fits within {request.space.max_tp}, so that larger sizes are planned too"
    return replace(request, space=replace(request.space, max_tp=type(request.space)().max_tp))


def _plan(request: PlanRequest, options: Options) -> int:
    from zenith_tune.planner.infeasible import DeadEnd

    gbs, num_gpus = options["gbs"], request.cluster.num_gpus
    model, job, space = request.model, request.job, request.space
    DeadEnd(model=model, job=job, num_gpus=num_gpus, global_batch=gbs, space=space).refuse()
    planner, bounds = request.planner(), {"space": space, "risk": options["risk"]}
    what_if = None
    if options["what_if"] is not None:
        what_if = planner.what_if(gbs, options["what_if"], top=options["top"], **bounds)
    plan = what_if.before if what_if else planner.plan(gbs, top=options["top"], **bounds)
    if (wider := _unbound(request, options, plan)) is not None and not (what_if and what_if.fits):
        return _plan(wider, {**options, "max_tp": wider.space.max_tp})
    points = planner.pareto(gbs, **bounds) if options["pareto"] else None
    enough = None if plan.best else planner.enough_gpus(gbs, **bounds)
    emission = _emission(planner, plan.best[0].layout, options) if plan.best else None
    if options["html"] is not None:
        _write_page(planner, plan, enough, emission, options)
    if options["as_json"]:
        _print_json({**_plan_object(plan, what_if, points, enough), **_reason(options)}, emission)
    else:
        report = _plan_report(options)
        _print_reason(options)
        report.plan(plan, planner.stages(plan.best[0].layout) if plan.best else (), enough)
        report.more(points, what_if)
        _print(emission, options)
    return 0 if plan.best or (what_if and what_if.fits) else 1


def _refuse_page(options: Options) -> None:
    """Refuse what cannot be written before anything is planned."""
    path = options["html"]
    if options["explain"] is not None:
        raise UsageError("--html is a page of all layouts and --explain about one", hint="leave one of them out")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--html must be a file in a folder that is there, but got {str(path)!r}", hint="give another")


def _write_page(planner: Planner, plan: Plan, enough: int | None, emission: Emission | None, options: Options) -> None:
    from zenith_tune.report.html.page import render_page
    from zenith_tune.report.plan.json import plan_digest
    from zenith_tune.study.files import write_output

    digest = plan_digest(planner, plan, enough, emission=emission, form=options["emit"] or "")
    try:
        write_output(options["html"], render_page(digest))
    except OSError as error:
        problem = f"{str(options['html'])!r} cannot be written ({error.strerror})"
        raise UsageError(problem, hint="give another --html") from error
    click.echo(f"written: {options['html']}", err=options["as_json"] or _is_beside(options))


def _plan_object(
    plan: Plan, what_if: WhatIf | None, points: list[PlannedLayout] | None, enough: int | None
) -> dict[str, Any]:
    from zenith_tune.report.plan import json as plan_json

    shown = plan_json.what_if_object(what_if) if what_if else plan_json.plan_object(plan, enough)
    return shown if points is None else {**shown, "pareto": [plan_json.planned_object(point) for point in points]}


def _explain(request: PlanRequest, options: Options) -> int:
    from zenith_tune.report.plan.json import explanation_object

    assert request.layout is not None
    planner = request.planner()
    explanation = planner.explain(request.layout, space=request.space, risk=options["risk"])
    emission = None if explanation.broken else _emission(planner, request.layout, options)
    if options["as_json"]:
        _print_json({**explanation_object(explanation), **_reason(options)}, emission)
    else:
        _print_reason(options)
        _plan_report(options).explanation(explanation)
        _print(emission, options)
    return 1 if explanation.broken else 0


def _plan_report(options: Options) -> PlanReport:
    """Return the report, beside the file of --emit where that goes to stdout."""
    from rich.console import Console

    from zenith_tune.report.plan.text import PlanReport

    return PlanReport(Console(stderr=_is_beside(options), highlight=False))


def _is_beside(options: Options) -> bool:
    return options["emit"] is not None and options["output"] is None


def _reason(options: Options) -> dict[str, Any]:
    return {"tensor_parallel_reason": options["reason"]} if "reason" in options else {}


def _print_reason(options: Options) -> None:
    if "reason" in options:
        click.echo(f"note: {options['reason']}", err=_is_beside(options))


def _emission(planner: Planner, layout: Layout, options: Options) -> Emission | None:
    if options["emit"] is None:
        return None
    from zenith_tune.presets.emission import Target
    from zenith_tune.presets.formats import format_named
    from zenith_tune.report.plan.text import write_emission

    target = Target(layout=layout, model=planner.model, cluster=planner.cluster, job=planner.job)
    emission = format_named(options["emit"]).emit(target)
    if options["output"] is not None:
        write_emission(emission, options["output"])
    return emission


def _print(emission: Emission | None, options: Options) -> None:
    if emission is not None:
        from zenith_tune.report.plan.text import print_emission

        print_emission(emission, options["output"])


def _print_json(shown: dict[str, Any], emission: Emission | None) -> None:
    if emission is not None:
        shown["emit"] = {"file_name": emission.file_name, "text": emission.text, "notes": list(emission.notes)}
    click.echo(json.dumps(shown, allow_nan=False))
