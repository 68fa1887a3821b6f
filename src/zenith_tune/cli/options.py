"""Options that several commands share, each declared once, and the files that they name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.decorators import FC

from zenith_tune.cli import completion
from zenith_tune.describe.job_spec import PRECISIONS as PRECISIONS
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import MAX_BATCH, MAX_SEQ, RISK
from zenith_tune.study.files import path_as_written
from zenith_tune.tuning.options import BUDGET, JOB, OF_THE_JOB, OUTPUT, PLACE, SEARCH, TuneOptions, flag
from zenith_tune.units import count

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec
    from zenith_tune.planner.cost import TrainingCost
    from zenith_tune.planner.plan import PlannedLayout

Options = dict[str, Any]


COUNT = click.IntRange(min=1)
BATCH, SEQUENCE = click.IntRange(1, MAX_BATCH), click.IntRange(1, MAX_SEQ)


class Probability(click.FloatRange):
    """A number above 0 and up to 1."""

    def __init__(self) -> None:
        super().__init__(0, 1, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):  # it compares with nothing, and would pass a range
            self.fail(f"{value} is not a probability above 0 and up to 1.", param, ctx)
        return number


class GroupedOption(click.Option):
    """An option with the heading that it is listed under."""

    def __init__(self, *names: Any, group: str = OUTPUT, is_rare: bool = False, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group, self.is_rare = group, is_rare


def _help_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[f"{__name__}.all"] = True
        click.echo(context.get_help())
        context.exit()


QUESTIONS = "Questions"
GROUPS = (JOB, QUESTIONS, SEARCH, BUDGET, PLACE, OUTPUT)
"""Headings, in the order of `--help`; those of other packages come before the output's."""


class GroupedCommand(click.Command):
    """A command that lists its options by group, and the rare ones with `--help-all` alone."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        shows_all, num_hidden = f"{__name__}.all" in ctx.meta, 0
        for each in self.get_params(ctx):
            if not isinstance(each, click.Option) or (row := each.get_help_record(ctx)) is None:
                continue
            if getattr(each, "is_rare", False) and not shows_all:
                num_hidden += 1
            else:
                groups.setdefault(getattr(each, "group", OUTPUT), []).append(row)
        for group, rows in sorted(groups.items(), key=lambda item: item[0] == OUTPUT):
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
        if num_hidden:
            formatter.write_paragraph()
            formatter.write_text(f"{count(num_hidden, 'more option')}: --help-all")


class RecordedCommand(GroupedCommand):
    """A command that remembers its options as they were written, to run with them again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)  # it hands on their values only
        ctx.meta[__name__] = self.make_parser(ctx).parse_args(words)
        return rest

    @staticmethod
    def given(besides: Container[str] = ()) -> tuple[str, ...]:
        """Return the words of the options that were given to the command that runs, each once, but for some names."""
        values, _, parameters = click.get_current_context().meta[__name__]
        options = [each for each in dict.fromkeys(parameters) if isinstance(each, click.Option)]
        return tuple(word for each in options if each.name not in besides for word in _words(each, values[each.name]))


def _words(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return [(option.opts if value else option.secondary_opts)[0]]
    return [word for each in (value if option.multiple else [value]) for word in (option.opts[0], each)]


def missing(options: Sequence[str], arguments: Sequence[str] = ()) -> str:
    """Name all that a command lacks.

    >>> missing(["--gbs", "--seq"])
    "Missing options '--gbs', '--seq'."
    """
    kinds = (("option", options), ("argument", arguments))
    named = [f"{kind}{'s' * (len(names) > 1)} {', '.join(map(repr, names))}" for kind, names in kinds if names]
    return f"Missing {' and '.join(named)}."


def require(options: Options, names: Iterable[str]) -> None:
    """Refuse a command that lacks some of the options which it needs."""
    if lacking := [f"--{name.replace('_', '-')}" for name in names if options[name] is None]:
        raise click.UsageError(missing(lacking))


def refuse_others(taken: Container[str], why: str) -> None:
    """Refuse the options that were given to the command that runs, but for some names."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in taken and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{why}, of which {parameter.opts[0]} is no part", hint="leave it out")


def grouped_option(name: str, *names: str, **settings: Any) -> Callable[[FC], FC]:
    """Declare an option with its group, which is the output's where none is given."""
    return click.option(name, *names, cls=GroupedOption, **settings)


class PathType(click.Path):
    """A path, of which `./~` is a folder of that name, and only a first `~` is the home folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path as it is written, if it is one."""
        super().convert(value, param, ctx)
        return path_as_written(os.fsdecode(value))


def path_option(name: str, *names: str, metavar: str | None = "FILE", **settings: Any) -> Callable[[FC], FC]:
    """Declare an option whose value is a path."""
    return grouped_option(name, *names, type=PathType(), metavar=metavar, **settings)


def options_of(kind: type, *names: str) -> Callable[[FC], FC]:
    """Declare the options that the fields of a dataclass stand for: all of them, or those of some names."""

    def declare(command: FC) -> FC:
        for each in reversed(fields(kind)):
            if "help" in each.metadata and (not names or each.name in names):
                command = _declared(each)(command)
        return command

    return declare


_TYPES = {"int": click.INT, "float": click.FLOAT, "str": click.STRING, "Path": PathType()}
_SEVERAL = ("Pairs", "Axes", "Names")
"""Types of what may be given several times."""
_COMPLETIONS = {
    "model": completion.models,
    "cluster": completion.clusters,
    "study_name": completion.studies,
    "hostfile": completion.files,
    "db": completion.files,
}


def _declared(each: Field[Any]) -> Callable[[FC], FC]:
    """Declare one field; the first type that its annotation names is what the command line gives."""
    kind, more, name = str(each.type).partition(" ")[0], each.metadata, flag(each.name)
    how: Options = {"help": more["help"], "default": each.default, "metavar": more.get("metavar")}
    how["show_default"] = each.default not in (None, False, ())
    how |= {"cls": GroupedOption, "group": more.get("group", OUTPUT), "is_rare": more.get("is_rare", False)}
    how["shell_complete"] = _COMPLETIONS.get(each.name)
    if kind == "bool":
        off = more.get("off")
        return click.option(f"{name}/{off}" if off else name, is_flag=True, **how)
    if kind in _SEVERAL:
        how |= {"multiple": True, "metavar": how["metavar"] or "K=V,..."}
        # Pairs that are given apart are read as one list.
        joined = (lambda context, parameter, pairs: ",".join(pairs) or None) if kind == "Pairs" else None
        return click.option(name, callback=joined, **how)
    if "choices" in more:
        return click.option(name, type=click.Choice(more["choices"]), **how)
    least = more.get("at_least")
    return click.option(name, type=_TYPES[kind] if least is None else click.IntRange(min=least), **how)


JOB_OPTIONS = ("gpus", "gbs", "seq")
job_options = options_of(TuneOptions, *JOB_OPTIONS)
"""Adds --gpus, --gbs and --seq, for what a command does not say of its job."""
study_place = options_of(TuneOptions, "output_dir", "db")
"""Adds --output-dir and --db, by which a study is found."""


def risk_option(help: str) -> Callable[[FC], FC]:
    """Declare --risk."""
    how: Options = {"default": RISK, "show_default": True, "group": SEARCH, "is_rare": True}
    return grouped_option("--risk", type=Probability(), metavar="P", help=help, **how)


def topology_option(effect: str = "") -> Callable[[FC], FC]:
    """Declare --topology, with what it changes."""
    help = f"What `nvidia-smi topo -m` or `nvlink -s` prints on a node{effect}."
    return path_option("--topology", help=help, group=JOB, is_rare=True)


def calibration_option(of: str = "fitted to measured runs") -> Callable[[FC], FC]:
    """Declare --calibration."""
    help = f"Coefficients {of}. [default: built in]"
    return path_option("--calibration", help=help, group=SEARCH, is_rare=True)


def args_option(help: str) -> Callable[[FC], FC]:
    """Declare --args, the arguments of a preset."""
    return click.option("--args", "args", metavar="K=V,...", multiple=True, help=help)


def cost_options(command: FC) -> FC:
    """Add --tokens and --price."""
    how: Options = {"metavar": "USD|GPU=USD,...", "help": "Price of a GPU-hour. [default: a public one]"}
    priced = grouped_option("--price", group=QUESTIONS, **how)(command)
    return grouped_option("--tokens", metavar="N", group=QUESTIONS, help="What so many take, e.g. 300B or 1T.")(priced)


def refuse_costs(options: Options) -> None:
    """Refuse values of --tokens and --price that are none before the planner is loaded."""
    from zenith_tune.planner.cost import parse_prices, parse_tokens

    if options["tokens"] is not None:
        parse_tokens(options["tokens"])
    parse_prices(options["price"])


def cost_of(planned: PlannedLayout | None, gpu: str, options: Options) -> TrainingCost | None:
    """Return what the training takes with a layout, where that was asked."""
    is_asked = options["tokens"] is not None or options["price"] is not None
    return planned.cost(gpu, options["tokens"], options["price"]) if planned is not None and is_asked else None


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
help_all_option = click.option(
    "--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all, help="Show all options and exit."
)
debug_option = click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")


def pairs(options: Options, *examples: str) -> dict[str, str]:
    """Return the values that --args and the options of the job give."""
    from zenith_tune.registry import parse_pairs

    found = parse_pairs(",".join(given), "--args", *examples) if (given := options.get("args")) else {}
    stated = [name for name in JOB_OPTIONS if options.get(name) is not None]
    return found | {OF_THE_JOB[name]: str(options[name]) for name in stated}


def linked(cluster: ClusterSpec, options: Options) -> ClusterSpec:
    """Return the cluster with its nodes linked as the file of --topology says."""
    if (path := options["topology"]) is None:
        return cluster
    from zenith_tune.describe.topology import read_topology, with_topology

    return with_topology(cluster, read_topology(path), path.name)


def refuse_file(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before the work for it is done."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} must be a file, but {str(path)!r} is a folder", hint="give a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of {option} {str(path)!r} does not exist", hint="make it, or give another")


def write_file(path: Path, text: str, option: str) -> None:
    """Write the file that an option names."""
    from zenith_tune.study.files import write_output

    try:
        write_output(path, text)
    except OSError as error:
        problem = f"{str(path)!r} cannot be written ({error.strerror})"
        raise UsageError(problem, hint=f"give another {option}") from error


def echo_json(content: Options) -> None:
    """Print one JSON object on a line."""
    click.echo(json.dumps(content, allow_nan=False))
