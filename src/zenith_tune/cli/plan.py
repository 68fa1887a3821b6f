"""The command `zenithtune plan`: the best layouts as predicted, without a GPU."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from click.core import ParameterSource

from zenith_tune.cli.options import (
    BATCH,
    COUNT,
    PRECISIONS,
    SEQUENCE,
    FloatRange,
    IntRange,
    Options,
    calibration_option,
    debug_option,
    echo_json,
    json_option,
    path_option,
    refuse_file,
    risk_option,
    topology_option,
    write_file,
)
from zenith_tune.cli.probe import MAX_PROBES, NUM_STEPS
from zenith_tune.describe.job_spec import DISPATCHERS
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import IMBALANCE, MOST_IMBALANCE
from zenith_tune.presets.formats import FRAMEWORKS, ONE_EACH, refuse_framework

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec
    from zenith_tune.describe.framework_spec import FrameworkSpec
    from zenith_tune.describe.job_spec import JobSpec
    from zenith_tune.describe.model_spec import ModelSpec
    from zenith_tune.estimate.calibration import Calibration
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.layouts.search_space import SearchSpace
    from zenith_tune.planner.plan import Plan, PlannedLayout
    from zenith_tune.planner.planner import Planner
    from zenith_tune.planner.what_if import WhatIf
    from zenith_tune.presets.emission import Emission
    from zenith_tune.report.plan.text import PlanReport


OWN_FRAMEWORK = "fsdp"
"""What a module of the user's own is planned for where nothing else is given: it takes any module."""
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

        space = self.space.tensor_within(self.cluster.fast_domain)
        is_whole = self.cluster.num_gpus <= space.max_tp
        may_leave = not is_whole and (emit is None or format_named(emit).tensor_across_nodes)
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
    from zenith_tune.planner.what_if import parse_changes

    _refuse_contradictions(options)
    space = _space(options)
    if options["what_if"] is not None:
        parse_changes(options["what_if"])
    framework = load_framework(options["framework"] or _framework(options))
    if options["emit"] is not None:
        refuse_framework(options["emit"], framework.name)
    cluster = load_cluster(options["cluster"])
    model, seq_len = _own_module(framework, options) if options["module"] else _known_model(options)
    job = JobSpec(
        seq_len=seq_len,
        framework=framework,
        precision=options["precision"],
        dispatcher=options["dispatcher"],
        gathers_fp8=options["precision"] == "fp8",  # as --emit writes it
        imbalance=options["imbalance"],
    )
    request = PlanRequest(
        model=model,
        cluster=cluster,
        job=job,
        space=_narrowed(_unsplit(space) if model.traced else space, framework.name, options["emit"]),
        layout=_layout(cluster, options),
        calibration=options["calibration"],
    )
    return _linked(request, options)


def _known_model(options: Options) -> tuple[ModelSpec, int]:
    from zenith_tune.describe.model_catalog import load_model

    return load_model(options["model"]), options["seq"]


def _own_module(framework: FrameworkSpec, options: Options) -> tuple[ModelSpec, int]:
    """Return the model that a callable of the user's own builds, and the length of its sequences."""
    from zenith_tune.presets.own_module import traced_model

    precision = options["precision"]
    return traced_model(options["module"], framework=framework, precision=precision, seq_len=options["seq"])


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
    if options["module"] is not None and options["model"] is not None:
        raise UsageError("--module and --model are both the model to plan for", hint="leave one of them out")
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


def _unsplit(space: SearchSpace) -> SearchSpace:
    """Return the space in which nothing of a module is split but over data-parallel ranks."""
    return replace(space, pinned={**ONE_EACH, **space.pinned})


def _framework(options: Options) -> str:
    known = FRAMEWORKS[options["emit"]] if options["emit"] is not None else ("megatron", OWN_FRAMEWORK)
    return OWN_FRAMEWORK if options["module"] and OWN_FRAMEWORK in known else known[0]


def _layout(cluster: ClusterSpec, options: Options) -> Layout | None:
    if options["explain"] is None:
        return None
    from zenith_tune.layouts.layout import parse_layout

    return parse_layout(options["explain"], num_gpus=cluster.num_gpus, global_batch=options["gbs"])


OF_THE_JOB = ("model", "gbs", "seq")
"""What a plan must be given, unless a training command says it."""
OF_A_MODULE = ("model", "seq")
"""What of it a module says, or the inputs that come with it."""
PROBED = ("model", "cluster", "gbs", "risk", "calibration", "probe", "as_json", "debug", "command")
"""What a plan with --probe takes; all else the command says."""


def _refuse_mimo(context: click.Context, parameter: click.Parameter, command: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a command whose modules have layouts of their own before any option is missed: its preset plans it."""
    if command:
        from zenith_tune.presets.mimo.preset import MimoPreset

        if MimoPreset.recognises(shlex.join(command)):
            problem = "a plan has one layout for the whole model, but the command trains modules with their own"
            raise UsageError(problem, hint="take zenithtune optimize --preset mimo --dry-run -- COMMAND")
    return command


@click.command(short_help="Predict the best layouts: step time, memory and risk, without a GPU.")
@click.option("--model", metavar="NAME|PATH", help="A model of the catalog, or its config.json.")
@click.option("--module", metavar="FILE.py:BUILD", help="A callable that returns your own nn.Module. Needs torch.")
@click.option("--cluster", required=True, metavar="NAME|PATH", help="GPUs, e.g. h100x64 or 8xH200; local; or a file.")
@topology_option(": TP stays where NVLink joins its GPUs")
@click.option("--gbs", type=BATCH, metavar="N", help="Global batch, in samples.")
@click.option("--seq", type=SEQUENCE, metavar="N", help="Sequence length.")
@click.option("--framework", metavar="NAME", help="What runs it. [default: megatron, or what --emit is for]")
@click.option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True, help="Of matrix work.")
@click.option("--dispatcher", type=click.Choice(DISPATCHERS), default="alltoall", show_default=True,
              help="How tokens reach their experts; flex: DeepEP.")  # fmt: skip
@click.option("--imbalance", type=FloatRange(0, MOST_IMBALANCE), metavar="X", default=IMBALANCE,
              show_default=True, help="Standard deviation of experts' loads over the mean; 0: balanced.")  # fmt: skip
@click.option("--top", type=COUNT, default=10, show_default=True, metavar="N", help="Layouts to show.")
@click.option("--explain", metavar="LAYOUT", help="Explain one layout, e.g. 'TP8 PP4 mbs1 SP selective'.")
@click.option("--pareto", is_flag=True, help="Also show what no layout beats in time, memory and GPUs together.")
@click.option("--what-if", metavar="K=V,...", help="Plan again with changes: mem=+8 (GiB), gpus=128, seq=, gbs=.")
@click.option("--emit", type=click.Choice(tuple(FRAMEWORKS)),
              help="Write the best layout, or the explained one, for a framework.")  # fmt: skip
@path_option("--output", metavar=None, help="--emit: folder to write to. [default: stdout]")
@click.option("--fix", "pinned", metavar="K=V,...", help="Values that are given, e.g. tp=8,pp=4,recompute=selective.")
@click.option("--max-tp", type=COUNT, metavar="N", help="Largest tensor-parallel size. [default: what NVLink joins]")
@click.option("--max-pp", type=COUNT, metavar="N", help="Most pipeline stages.")
@click.option("--max-cp", type=COUNT, metavar="N", help="Largest context-parallel size. [default: 64]")
@click.option("--max-mbs", type=COUNT, metavar="N", help="Largest micro-batch.")
@click.option("--space", type=click.Choice(["default", "all"]), default="default", show_default=True,
              help="all: also what is never predicted to be better.")  # fmt: skip
@risk_option("Leave out what runs out of memory with this probability or more.")
@calibration_option()
@click.option("--probe", type=IntRange(1, MAX_PROBES), metavar="K",
              help="Run single ranks of the best K layouts on this machine's GPU, and rank them again.")  # fmt: skip
@path_option("--html", help="Also write the plan as one HTML page.")
@json_option
@debug_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", is_eager=True,
                callback=_refuse_mimo)  # fmt: skip
def plan(command: tuple[str, ...], **options: Any) -> int:
    """Rank every legal layout of a training job by its predicted step time, with the risk of running out of memory.

    \b
    zenithtune plan --model llama3-70b --cluster h100x64 --gbs 512 --seq 8192
    zenithtune plan --model ./config.json --cluster 8xH200 --gbs 64 --seq 4096 --emit megatron
    zenithtune plan --module model.py:build --cluster h100x8 --gbs 64 --seq 2048
    zenithtune plan --cluster h200x64 --probe 3 -- bash train.sh
    """
    if options["probe"] is not None:
        return _probe(command, options)
    if options["html"] is not None and options["explain"] is not None:
        raise UsageError("--html is a page of all layouts and --explain about one", hint="leave one of them out")
    refuse_file(options["html"], "--html")
    if command:
        raise UsageError("a training command is what --probe runs", hint="give --probe K, or leave the command out")
    for name in OF_THE_JOB:
        if options[name] is None and not (options["module"] and name in OF_A_MODULE):
            raise click.MissingParameter(param_hint=f"'--{name}'", param_type="option")
    request = read_request(options)
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
    asked = {"layouts": (), "args": (), "top": options["probe"], "gpus": None, "vocab": None, "timeout": None}
    return run_probe(command, {**options, **asked, "steps": NUM_STEPS, "output_dir": None})


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
    fits = bool(plan.best or (what_if and what_if.fits))
    if request.may_leave_island and not fits:
        return _plan(request.beyond_island(), options)
    points = planner.pareto(gbs, **bounds) if options["pareto"] else None
    enough = None if plan.best else planner.enough_gpus(gbs, **bounds)
    emission = _emission(planner, plan.best[0].layout, options) if plan.best else None
    if options["html"] is not None:
        _write_page(planner, plan, enough, emission, options)
    if options["as_json"]:
        _print_json(_plan_object(plan, what_if, points, enough), request, emission)
    else:
        report = _report(request, options)
        report.plan(plan, planner.stages(plan.best[0].layout) if plan.best else (), enough)
        report.more(points, what_if)
        _print(emission, options)
    return 0 if fits else 1


def _write_page(planner: Planner, plan: Plan, enough: int | None, emission: Emission | None, options: Options) -> None:
    from zenith_tune.presets.formats import default_format
    from zenith_tune.report.html.page import render_page
    from zenith_tune.report.plan.json import plan_digest

    form = options["emit"] or default_format(planner.job.framework.name)
    if emission is None and plan.best and form is not None:
        with suppress(UsageError):  # a layout that this format cannot say
            emission = _emission(planner, plan.best[0].layout, {"emit": form, "output": None})
    digest = plan_digest(planner, plan, enough, emission=emission, form=form or "")
    write_file(options["html"], render_page(digest), "--html")
    click.echo(f"written: {options['html']}", err=options["as_json"] or _is_beside(options))


def _plan_object(plan: Plan, what_if: WhatIf | None, points: list[PlannedLayout] | None, enough: int | None) -> Options:
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
        _print_json(explanation_object(explanation), request, emission)
    else:
        _report(request, options).explanation(explanation)
        _print(emission, options)
    return 1 if explanation.broken else 0


def _report(request: PlanRequest, options: Options) -> PlanReport:
    """Return the report, beside the file of --emit where that goes to stdout, with the request's note printed."""
    from rich.console import Console

    from zenith_tune.report.plan.text import PlanReport

    if request.tensor_reason:
        click.echo(f"note: {request.tensor_reason}", err=_is_beside(options))
    return PlanReport(Console(stderr=_is_beside(options), highlight=False))


def _is_beside(options: Options) -> bool:
    return options["emit"] is not None and options["output"] is None


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


def _print_json(shown: Options, request: PlanRequest, emission: Emission | None) -> None:
    if request.tensor_reason:
        shown["tensor_parallel_reason"] = request.tensor_reason
    if emission is not None:
        shown["emit"] = {"file_name": emission.file_name, "text": emission.text, "notes": list(emission.notes)}
    echo_json(shown)
