"""The command `zenithtune optimize`: runs a training command again and again with other options."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli.options import PERCENT, SIZE, RecordedCommand
from zenith_tune.errors import StudyInterrupted, UsageError
from zenith_tune.units import GIB

if TYPE_CHECKING:
    from zenith_tune.tuner import PresetTuner
    from zenith_tune.tuning.config import StudyConfig
    from zenith_tune.tuning.events import StudyListener

PLACE = ("output_dir", "study_name", "db", "resume", "retry_failed", "debug")
"""Options that say where a study is and how it is continued now, which is not the same the next time."""
SELECTORS = ("last", "first", "min", "max", "mean", "median")


@click.command(cls=RecordedCommand, short_help="Find the fastest options for a training command by short real trials.")
@click.option("--preset", metavar="NAME",
              help="megatron-lm, deepspeed, accelerate, trainer, torchtitan ... [default: by the command]")  # fmt: skip
@click.option("--args", "args", metavar="K=V,...", multiple=True, help="The preset's arguments, e.g. n_gpus=8,gbs=16.")
@click.option("--topology", type=click.Path(path_type=Path), metavar="FILE",
              help="What `nvidia-smi topo -m` printed on one node: the nodes of the job are linked so.")  # fmt: skip
@click.option("--strategy", metavar="NAME", help="How to search: guided, zero-progressive, grid, random, optuna, ...")
@click.option("--space", multiple=True, metavar="NAME=VALUES",
              help="Tune a program of your own: bs=4,8,16 or lr=log:1e-5..1e-3 for {bs} or --bs.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="NAME",
              help="Try a lever that changes the numerics as well, such as fp8 or bf16_grads.")  # fmt: skip
@click.option("--strategy-args", metavar="K=V,...", multiple=True, help="The strategy's arguments, e.g. seed=1.")
@click.option(
    "--evaluator",
    metavar="NAME",
    help="How to read a trial's value: megatron, deepspeed, accelerate, trainer, torchtitan, regex, ...",
)
@click.option("--evaluator-args", metavar="K=V,...", multiple=True, help="The evaluator's arguments.")
@click.option("--objective", metavar="NAME|REGEX",
              help="What counts: tokens_per_s, step_time, tflops, samples_per_s or throughput where the evaluator "
              "knows it, else a pattern with exactly one group. [default: tokens_per_s where batch and sequence are "
              "known]")  # fmt: skip
@click.option("--maximize/--minimize", default=None,
              help="Which way the REGEX of --objective is better. [default: minimize]")  # fmt: skip
@click.option("--select", type=click.Choice(SELECTORS),
              help="Which match of the REGEX of --objective counts. [default: last]")  # fmt: skip
@click.option("--n-trials", type=click.IntRange(min=1), metavar="N", help="Budget of trials.")
@click.option("--train-hours", type=float, metavar="H",
              help="How long the training will run that this is for: the search ends when another trial would cost "
              "more than it saves. [default: the command's own steps, or 8]")  # fmt: skip
@click.option("--gpu-hours", type=float, metavar="H", help="Budget of GPU time, over all trials.")
@click.option("--max-hours", type=float, metavar="H", help="End the study after H hours.")
@click.option("--price", type=float, metavar="USD", help="Price of a GPU-hour, to say what the study costs.")
@click.option(
    "--max-memory", type=SIZE, metavar="SIZE", help="The best layout may take so much of a GPU's memory: 70GiB."
)
@click.option("--headroom", type=PERCENT, metavar="PCT",
              help="The best layout must leave so much of a GPU's memory free. [default: 0.2%]")  # fmt: skip
@click.option("--confirm/--no-confirm", default=True, show_default=True,
              help="Run the best layout and your own command once more before a gain is claimed.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=1, metavar="N", help="Run each point N times.")
@click.option("--timeout", type=float, metavar="S", help="End a trial after S seconds.")
@click.option("--timeout-dynamic", is_flag=True, help="End a trial once it cannot beat the best one any more.")
@click.option("--timeout-margin", type=float, metavar="X",
              help="--timeout-dynamic: how many times the best trial's duration. [default: 1.5]")  # fmt: skip
@click.option("--early-stop/--no-early-stop", default=True, show_default=True,
              help="End a trial once its value is known, or almost certainly worse than the best.")  # fmt: skip
@click.option("--early-precision", type=float, metavar="PCT",
              help="--early-stop: how well a value must be known, in percent. [default: 1]")  # fmt: skip
@click.option("--no-baseline", is_flag=True, help="Do not run your own command first.")
@click.option("--output-dir", type=click.Path(path_type=Path), help="Where studies are kept. [default: zenithtune-out]")
@click.option("--study-name", metavar="NAME", help="The study's name. [default: preset and time]")
@click.option("--db", metavar="PATH|URL",
              help="The study's database, a file or postgresql://... [default: OUTPUT_DIR/studies.db; with a file, its "
              "folder is the default of --output-dir]")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue a study: the one named, or else the last one.")
@click.option("--retry-failed", is_flag=True, help="--resume: run the trials again that ended in an error.")
@click.option("--runner", metavar="NAME", help="Where trials run: local, slurm, ray or hostfile. [default: local]")
@click.option("--runner-args", multiple=True, metavar="K=V,...", help="Arguments of the runner.")
@click.option("--slurm", multiple=True, metavar="K=V,...",
              help="Run each trial as a Slurm job: partition=...,nodes=2,gpus_per_node=8,time=00:20:00")  # fmt: skip
@click.option("--ray-address", metavar="ADDRESS", help="Run each trial on a Ray cluster: auto, or HOST:PORT.")
@click.option("--hostfile", metavar="PATH", help="Run trials over the hosts of a file: one line `name slots=8` each.")
@click.option("--parallel", metavar="auto|N", default="1", show_default=True,
              help="How many trials run side by side; auto: as many as there are GPUs for.")  # fmt: skip
@click.option("--gpus-per-trial", type=click.IntRange(min=1), metavar="N",
              help="GPUs per node that a trial needs. [default: what the command starts]")  # fmt: skip
@click.option("--nodes-per-trial", type=click.IntRange(min=1), metavar="N",
              help="Nodes that a trial needs. [default: what the command starts]")  # fmt: skip
@click.option("--max-duplicates", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
              help="Stop random or optuna after N repeated points in a row.")  # fmt: skip
@click.option("--max-prunes", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
              help="Stop random or optuna after N pruned points in a row.")  # fmt: skip
@click.option("--dump-env", is_flag=True, help="Record the environment, with secrets masked.")
@click.option("--dry-run", is_flag=True, help="Print what would run and what is pruned; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout; text for people on stderr.")
@click.option("--debug", is_flag=True, help="Show a traceback when something goes wrong.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def optimize(command: tuple[str, ...], **options: Any) -> int:
    """Run COMMAND again and again with other options, and print the fastest command.

    Everything after -- is the training command that you already use. It is untouched but for the options that the
    preset sets; where options find no safe place, write {tp}, {mbs} and so on where the values belong.

    \b
    zenithtune optimize --preset megatron --args n_gpus=8,gbs=16 -- bash train.sh
    """
    for name in ("runner", "ray_address", "hostfile", "db", "study_name"):
        if options[name] == "":
            raise UsageError(f"--{name.replace('_', '-')} must not be empty", hint="give a value, or leave it out")
    tuner = _make_tuner(command, options)
    tuner.config = replace(tuner.config, options=RecordedCommand.given(PLACE))
    for line in _notes(tuner.config):
        click.echo(f"zenithtune: warning: {line}", err=True)
    if options["dry_run"]:
        return _dry_run(tuner, options)
    tuner.config.check_program()
    tuner.listener = lambda: _listener(options)
    try:
        best_value, _ = tuner.optimize(options["n_trials"])
    except StudyInterrupted as error:  # caught here, because click takes every KeyboardInterrupt for Ctrl-C
        return 128 + error.signum
    return 0 if best_value is not None else 1


INNER_SHELL = re.compile(r"\bsh -[a-z]*c\b")


def _notes(config: StudyConfig) -> Iterator[str]:
    """Yield what the user should know before the first run."""
    file = config.line.output_file
    # Inside `sh -c` it may be another program's, while the training prints.
    if file is not None and not INNER_SHELL.search(config.command):
        yield f"the command writes its output to {file}, where no value is read: leave that out, or write | tee {file}"
    limit, capacity = config.memory.max_bytes, config.first_capacity_bytes
    if limit is not None and capacity is not None and limit > capacity:
        yield f"--max-memory {limit / GIB:.0f}GiB limits nothing: a GPU has {capacity / GIB:.0f} GiB"


JOINED = ("args", "strategy_args", "evaluator_args", "runner_args", "slurm")
"""Options that may be given several times, and are joined."""


def _make_tuner(command: tuple[str, ...], options: dict[str, Any]) -> PresetTuner:
    from zenith_tune.api.tune_options import TuneOptions
    from zenith_tune.shell import ParsedCommand

    same = {field.name: options[field.name] for field in fields(TuneOptions) if field.name in options}
    joined = {name: ",".join(options[name]) if options[name] else None for name in JOINED}
    chosen = TuneOptions(**{**same, **joined, "baseline": not options["no_baseline"]})
    return chosen.tuner(ParsedCommand.from_argv(command).text, owns_process=not options["dry_run"])


def _listener(options: dict[str, Any]) -> StudyListener:
    from rich.console import Console

    from zenith_tune.report.json_lines import JsonLinesReporter
    from zenith_tune.report.terminal.terminal import TerminalReporter

    as_json = options["as_json"]
    # A live display and JSON on one terminal would write over one another.
    people = TerminalReporter(Console(stderr=as_json, highlight=False), live=not (as_json and sys.stdout.isatty()))
    return JsonLinesReporter(sys.stdout, people) if as_json else people


def _dry_run(tuner: PresetTuner, options: dict[str, Any]) -> int:
    from zenith_tune.report.dry_run import DryRunJson, DryRunText, dry_run

    listener = DryRunJson(sys.stdout) if options["as_json"] else DryRunText(sys.stdout)
    dry_run(tuner.config.with_budget(options["n_trials"]), tuner.tuned_job(), listener)
    return 0
