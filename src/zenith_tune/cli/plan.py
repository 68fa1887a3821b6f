"""The command `zenithtune plan`: the best layouts as predicted, without a GPU."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource

from zenith_tune.cli import completion
from zenith_tune.cli.options import (
    BATCH,
    COUNT,
    PRECISIONS,
    QUESTIONS,
    SEQUENCE,
    Options,
    RecordedCommand,
    calibration_option,
    cost_of,
    cost_options,
    debug_option,
    echo_json,
    grouped_option,
    help_all_option,
    json_option,
    path_option,
    refuse_costs,
    refuse_file,
    refuse_others,
    require,
    risk_option,
    topology_option,
    write_file,
)
from zenith_tune.describe.job_spec import DISPATCHERS
from zenith_tune.errors import MissingPackageError, UsageError
from zenith_tune.planner.limits import IMBALANCE, MAX_PROBES, MOST_IMBALANCE
from zenith_tune.planner.training_way import OPTIMIZERS
from zenith_tune.presets.formats import FORMATS
from zenith_tune.tuning.options import JOB, SEARCH
from zenith_tune.units import count

if TYPE_CHECKING:
    from zenith_tune.api.plan_request import PlanRequest
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.planner.plan import Plan
    from zenith_tune.planner.planner import Planner
    from zenith_tune.presets.emission import Emission
    from zenith_tune.report.plan.text import PlanReport

BOUNDED = ("tp", "pp", "cp", "mbs")
OF_A_REQUEST = (
    *("gpus", "gbs", "seq", "module", "framework", "precision", "dispatcher", "imbalance"),
    *("lora", "qlora", "optimizer", "offload", "reference"),
    *("space", "risk", "topology"),
)
"""Options that a request has by the same names."""


def read_options(options: Options) -> PlanRequest:
    """Return what the options of the command ask for."""
    from zenith_tune.api.plan_request import read_request
    from zenith_tune.planner.what_if import parse_changes

    _refuse_contradictions(options)
    if options["what_if"] is not None:
        parse_changes(options["what_if"])
    refuse_costs(options)
    request = read_request(
        options["model"],
        options["cluster"],
        fix=options["pinned"],
        max_sizes={name: options[f"max_{name}"] for name in BOUNDED},
        calibration=options["calibration"],
        emit=options["emit"],
        takes_kind=options["explain"] is None,
        **{name: options[name] for name in OF_A_REQUEST},
    )
    if request.warning:
        click.echo(f"warning: {request.warning}", err=True)
    return request


def _refuse_contradictions(options: Options) -> None:
    if options["output"] is not None and options["emit"] is None:
        raise UsageError("--output is where --emit writes", hint="give --emit too, or leave it out")
    if options["module"] is not None and options["model"] is not None:
        raise UsageError("--module and --model are both the model to plan for", hint="leave one of them out")
    for name in NOT_COMPARED if options["compare"] is not None else ():
        if options[name]:
            problem = f"--{name.replace('_', '-')} is about one cluster and --compare about several"
            raise UsageError(problem, hint="leave one of them out")
    if options["explain"] is None:
        return
    for name in ("pareto", "what_if", "longest", "pinned"):
        if options[name]:
            option = "--fix" if name == "pinned" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is about all layouts and --explain about one", hint="leave one of them out")


OF_THE_JOB = ("model", "cluster", "gbs", "seq")
"""What a plan must be given, unless a training command says it."""
OF_A_MODULE = ("model", "seq")
"""What of it a module says, or the inputs that come with it."""
NOT_COMPARED = ("explain", "what_if", "pareto", "longest", "emit", "html", "probe")
"""What is about one cluster."""
OF_A_WAY = ("lora", "qlora", "optimizer", "offload", "framework")
"""Options that a way out gives itself."""
PROBED = ("model", "cluster", "gbs", "risk", "calibration", "probe", "as_json", "debug", "command")
"""What a plan with --probe takes; all else the command says."""


class PlanCommand(RecordedCommand):
    """The command, with the options of other kinds of plan that installed packages bring through entry points.

    Each kind is a command named after the option that asks for it; its callback gets all options.
    """

    siblings: ClassVar[dict[str, str]] = {"--rl": "rl"}
    """The kinds of this project's other packages, with the extra that installs each."""
    kinds: ClassVar[tuple[click.Command, ...]] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args[: args.index("--")] if "--" in args else args
        named = {word.partition("=")[0] for word in own if word.startswith("-")}
        known = {name for each in self.params for name in each.opts}
        # Looked for only where something else is asked than what is here, since that takes as long as a plan.
        if not PlanCommand.kinds and (ctx.resilient_parsing or not named <= known - {"--help-all"}):
            from zenith_tune.registry import entry_points

            PlanCommand.kinds = tuple(point.load() for point in entry_points("zenith_tune.plans"))
            self.params += [each for kind in self.kinds for each in kind.params]
            known = {name for each in self.params for name in each.opts}
        for name in named & self.siblings.keys() - known:
            raise MissingPackageError(f"zenithtune plan {name}", self.siblings[name])
        return super().parse_args(ctx, args)


def _refuse_alone(kind: click.Command) -> None:
    """Refuse the options of a kind of plan that is not asked for."""
    source = click.get_current_context().get_parameter_source
    for each in kind.params:
        if source(str(each.name)) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{each.opts[0]} belongs to --{kind.name}", hint=f"give --{kind.name} too, or leave it out"
            )


@click.command(cls=PlanCommand, short_help="Predict the best layouts: step time, memory and risk, without a GPU.")
@grouped_option("--model", metavar="NAME|PATH", group=JOB, shell_complete=completion.models,
                help="A model of the catalog, or its config.json.")  # fmt: skip
@grouped_option("--module", metavar="FILE.py:BUILD", group=JOB,
                help="A callable that returns your own nn.Module. Needs torch.")  # fmt: skip
@grouped_option("--cluster", metavar="NAME|PATH", group=JOB, shell_complete=completion.clusters,
                help="GPUs, e.g. h100x64 or 8xH200; local; a file; or h100, for as few as fit.")  # fmt: skip
@grouped_option("--gpus", type=COUNT, metavar="N", group=JOB, help="How many, where --cluster is a kind of GPU.")
@grouped_option("--gbs", type=BATCH, metavar="N", group=JOB, help="Global batch, in samples.")
@grouped_option("--seq", type=SEQUENCE, metavar="N", group=JOB, help="Sequence length.")
@grouped_option("--framework", metavar="NAME", group=JOB,
                help="What runs it. [default: megatron, or what --emit is for]")  # fmt: skip
@grouped_option("--precision", type=click.Choice(PRECISIONS), default="bf16", show_default=True, group=JOB,
                help="Of matrix work.")  # fmt: skip
@grouped_option("--lora", is_flag=True, group=JOB, help="Train adapters of rank 16 on a model in bf16.")
@grouped_option("--qlora", is_flag=True, group=JOB, help="Train adapters of rank 16 on a model in 4 bits.")
@grouped_option("--optimizer", type=click.Choice(OPTIMIZERS), default="adam", show_default=True, group=JOB,
                help="8bit: moments of a byte each; bf16: no master copy.")  # fmt: skip
@grouped_option("--offload", is_flag=True, group=JOB, help="Keep the optimizer in the host's memory.")
@grouped_option("--reference", is_flag=True, group=JOB,
                help="Also run a frozen copy of the model, as DPO, KTO and GRPO do.")  # fmt: skip
@topology_option(": TP stays where NVLink joins its GPUs")
@grouped_option("--dispatcher", type=click.Choice(DISPATCHERS), default="alltoall", show_default=True, group=JOB,
                is_rare=True, help="How tokens reach their experts; flex: DeepEP.")  # fmt: skip
@grouped_option("--imbalance", type=click.FloatRange(0, MOST_IMBALANCE), metavar="X", default=IMBALANCE, group=JOB,
                is_rare=True, show_default=True,
                help="Standard deviation of experts' loads over the mean; 0: balanced.")  # fmt: skip
@cost_options
@grouped_option("--compare", metavar="CLUSTERS", group=QUESTIONS, shell_complete=completion.clusters,
                help="Which is fastest and which cheapest, e.g. h100x64,h200x64,gb200x72.")  # fmt: skip
@grouped_option("--longest", is_flag=True, group=QUESTIONS, help="Find the longest sequence that fits.")
@grouped_option("--explain", metavar="LAYOUT", group=QUESTIONS,
                help="Explain one layout, e.g. 'TP8 PP4 mbs1 SP selective'.")  # fmt: skip
@grouped_option("--what-if", metavar="K=V,...", group=QUESTIONS,
                help="Plan again with changes: mem=+8 (GiB), gpus=128, seq=, gbs=.")  # fmt: skip
@grouped_option("--pareto", is_flag=True, group=QUESTIONS,
                help="Also show what no layout beats in time, memory and GPUs together.")  # fmt: skip
@grouped_option("--fix", "pinned", metavar="K=V,...", group=SEARCH,
                help="Values that are given, e.g. tp=8,pp=4,recompute=selective.")  # fmt: skip
@grouped_option("--max-tp", type=COUNT, metavar="N", group=SEARCH, is_rare=True,
                help="Largest tensor-parallel size. [default: what NVLink joins]")  # fmt: skip
@grouped_option("--max-pp", type=COUNT, metavar="N", group=SEARCH, is_rare=True, help="Most pipeline stages.")
@grouped_option("--max-cp", type=COUNT, metavar="N", group=SEARCH, is_rare=True,
                help="Largest context-parallel size. [default: 64]")  # fmt: skip
@grouped_option("--max-mbs", type=COUNT, metavar="N", group=SEARCH, is_rare=True, help="Largest micro-batch.")
@grouped_option("--space", type=click.Choice(["default", "all"]), default="default", show_default=True, group=SEARCH,
                is_rare=True, help="all: also what is never predicted to be better.")  # fmt: skip
@risk_option("Leave out what runs out of memory with this probability or more.")
@calibration_option()
@grouped_option("--probe", type=click.IntRange(1, MAX_PROBES), metavar="K", group=SEARCH,
                help="Run single ranks of the best K layouts on this machine's GPU, and rank them again.")  # fmt: skip
@grouped_option("--top", type=COUNT, default=10, show_default=True, metavar="N", help="Layouts to show.")
@grouped_option("--emit", type=click.Choice(tuple(FORMATS)),
                help="Write the best layout, or the explained one, for a framework.")  # fmt: skip
@path_option("--output", metavar=None, help="--emit: folder to write to. [default: stdout]")
@path_option("--html", help="Also write the plan as one HTML page.")
@click.option("-v", "--verbose", is_flag=True, help="Print all: the best one's tables, and what was left out and why.")
@json_option
@debug_option
@help_all_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]", is_eager=True,
                shell_complete=completion.files)  # fmt: skip
def plan(command: tuple[str, ...], **options: Any) -> int:
    """Rank every legal layout of a training job by its predicted step time, with the risk of running out of memory.

    \b
    zenithtune plan --model llama3-70b --cluster h100x64 --gbs 512 --seq 8192
    zenithtune plan --model ./config.json --cluster 8xH200 --gbs 64 --seq 4096 --emit megatron
    zenithtune plan --module model.py:build --cluster h100x8 --gbs 64 --seq 2048
    zenithtune plan --cluster h200x64 --probe 3 -- bash train.sh
    """
    for kind in PlanCommand.kinds:
        if options[str(kind.name)] is not None:
            return int(kind.callback(**options)) if kind.callback else 0
        _refuse_alone(kind)
    if options["probe"] is not None:
        return _probe(command, options)
    if options["html"] is not None and options["explain"] is not None:
        raise UsageError("--html is a page of all layouts and --explain about one", hint="leave one of them out")
    refuse_file(options["html"], "--html")
    if command:
        hint = "plan a command by zenithtune optimize --dry-run -- COMMAND, or give --probe K"
        raise UsageError("plan takes a training command only with --probe", hint=hint)
    known = {*(OF_A_MODULE if options["module"] else ()), *(("cluster",) if options["compare"] else ())}
    require(options, [name for name in OF_THE_JOB if name not in known])
    if options["compare"] is not None:
        return _compare(options)
    request = read_options(options)
    return _explain(request, options) if options["explain"] is not None else _plan(request, options)


def _probe(command: tuple[str, ...], options: Options) -> int:
    """Plan by the command itself, which says what is trained, and let single ranks of the best layouts run."""
    from zenith_tune.cli.main import cli

    refuse_others(PROBED, "--probe plans what the command says")
    context, given = click.get_current_context(), {name: options[name] for name in PROBED if name in options}
    probe = cli.get_command(context, "probe")
    assert probe is not None  # where its package is not installed, an error says so
    return int(context.invoke(probe, command=command, top=given.pop("probe"), **given))


def _plan(request: PlanRequest, options: Options) -> int:
    found = request.planned(top=options["top"], what_if=options["what_if"])
    request, planner, plan, what_if = found.request, found.planner, found.plan, found.what_if
    bounds: Options = {"space": request.space, "risk": request.risk}
    points = planner.pareto(request.global_batch, **bounds) if options["pareto"] else None
    above = plan.cluster.num_gpus
    enough = None if plan.best else planner.least_gpus(request.global_batch, above=above, **bounds)
    longest = planner.longest_seq(request.global_batch, **bounds) if options["longest"] else None
    emission = _emission(planner, plan.best[0].layout, options) if plan.best else None
    best, gpu = plan.best[0] if plan.best else None, plan.cluster.gpu.name
    cost = cost_of(best, gpu, options)
    after = cost_of(what_if.after.best[0], gpu, options) if what_if and what_if.after.best else None
    if options["html"] is not None:
        _write_page(planner, plan, enough, emission, options)
    if options["as_json"]:
        from zenith_tune.report.plan.json import plan_object, planned_object, what_if_object

        shown = what_if_object(what_if, cost, after) if what_if else plan_object(plan, enough, cost, found.ways_out)
        pareto = {} if points is None else {"pareto": [planned_object(point) for point in points]}
        least = {"least_gpus": above} if request.is_least else {}
        longest_seq = {"longest_seq_len": longest} if options["longest"] else {}
        _print_json({**shown, **least, **longest_seq, **pareto}, request, emission)
    else:
        report = _report(request, options)
        report.answer(plan, cost, enough, found.ways_out)
        if (fitting := next((way for way in found.ways_out if way.fits), None)) is not None:
            given = shlex.join(["zenithtune", "plan", *map(str, RecordedCommand.given(OF_A_WAY))])
            line = f"plan by the first of them: {given} {fitting.options}"
            click.echo(line, err=_is_beside(options))  # as one line, to be pasted
        if request.is_least:
            report.say(f"it takes {count(above, 'GPU')}: no layout fits on fewer")
        if options["longest"]:
            report.say(
                f"sequences of up to {longest:,} tokens fit" if longest else "no sequence is short enough to fit"
            )
        if what_if is not None:
            report.what_if(what_if, after)
        _print(emission, options)
        stages = planner.stages(plan.best[0].layout) if plan.best else ()
        report.plan(plan, stages, in_full=options["verbose"])
        if points is not None:
            report.pareto(points)
    return 0 if found.fits else 1


def _compare(options: Options) -> int:
    from zenith_tune.api.plan_request import compared

    names = [name for name in (options["cluster"], *options["compare"].split(",")) if name]
    requests = [read_options({**options, "cluster": name}) for name in dict.fromkeys(names)]
    found = compared(requests, tokens=options["tokens"], price=options["price"])
    if options["as_json"]:
        from zenith_tune.report.plan.json import comparison_object

        echo_json(comparison_object(found))
    else:
        from rich.console import Console

        from zenith_tune.report.plan.text import PlanReport

        PlanReport(Console(highlight=False)).comparison(found)
    return 0 if found.fastest is not None else 1


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


def _explain(request: PlanRequest, options: Options) -> int:
    layout = request.layout(options["explain"])
    # Not before: a mistake is reported without the planner.
    from zenith_tune.report.plan.json import explanation_object

    planner = request.planner()
    explanation = planner.explain(layout, space=request.space, risk=request.risk)
    emission = None if explanation.broken else _emission(planner, layout, options)
    cost = cost_of(explanation.planned, request.cluster.gpu.name, options)
    if options["as_json"]:
        _print_json(explanation_object(explanation, cost), request, emission)
    else:
        _report(request, options).explanation(explanation, cost)
        _print(emission, options)
    return 1 if explanation.broken else 0


def _report(request: PlanRequest, options: Options) -> PlanReport:
    """Return the report, on stderr where the file of --emit goes to stdout, with the request's note printed."""
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
