"""The command `zenithtune doctor`: what limits a run, and what to change, by the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli.options import (
    Options,
    args_option,
    calibration_of,
    calibration_option,
    debug_option,
    echo_json,
    json_option,
    pairs,
    risk_option,
    study_place,
    topology_option,
)

if TYPE_CHECKING:
    from zenith_tune.doctor.diagnosed_run import DiagnosedRun, UnplannedRun

COMMAND = "zenith_tune.cli.doctor"
"""Where a context keeps the training command."""


class _BeforeCommand(click.Command):
    """Keep what stands behind -- apart, so that a log and a training command are not taken for one another."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, []
        if "--" in args:
            place = args.index("--")
            own, command = args[:place], args[place + 1 :]
        ctx.meta[COMMAND] = tuple(command)
        return super().parse_args(ctx, own)


@click.command(cls=_BeforeCommand, short_help="Say what limits a run, what to change, and what that would bring.")
@click.option("--model", metavar="NAME|PATH",
              help="What was trained: a name of the catalog, a config.json, or an id of the Hugging Face Hub. "
              "[default: the command's, the log's or the study's]")  # fmt: skip
@click.option("--cluster", metavar="NAME|PATH",
              help="Where it runs, e.g. h100x64. [default: the study's; this machine]")  # fmt: skip
@topology_option()
@click.option("--preset", metavar="NAME", help="What reads the command. [default: the study's, or by the command]")
@args_option("What the command does not say: n_gpus=64,gbs=512,model=llama3-70b,vocab=128256.")
@risk_option("Propose nothing that runs out of memory with this probability or more.")
@calibration_option()
@study_place
@json_option
@debug_option
@click.argument("target", required=False, type=click.Path(path_type=Path), metavar="[STUDY|LOG] [-- COMMAND...]")
@click.pass_context
def doctor(context: click.Context, /, target: Path | None, **options: Any) -> int:
    """Name what slows a run down, with its number, and the change that helps, with the gain that the planner predicts.

    STUDY is a study's name, its folder, or its study.json, LOG what a run printed; Megatron-LM's log states its job
    itself, other logs need the COMMAND too. A command alone is diagnosed by its plan.

    \b
    zenithtune doctor megatron-lm-20260801-120000
    zenithtune doctor train.log --cluster h100x64
    zenithtune doctor --cluster h100x64 -- bash train.sh

    Exit code: 0 the run trains, 1 it failed, is kept waiting or fits nowhere, 2 a mistake in the command line.
    """
    run, reason = _run(target, context.meta[COMMAND], options)
    from zenith_tune.doctor.diagnosed_run import UnplannedRun
    from zenith_tune.doctor.diagnosis import diagnose_run
    from zenith_tune.report.doctor import diagnosis_object, report_lines, unplanned_lines, unplanned_object

    if isinstance(run, UnplannedRun):
        if options["as_json"]:
            echo_json({"run": run.what, **unplanned_object(run)})
        else:
            click.echo("\n".join(unplanned_lines(run)))
        return 0 if run.measured.is_sound else 1
    diagnosis = diagnose_run(run, risk=options["risk"], calibration=calibration_of(options))
    if options["as_json"]:
        because = {"tensor_parallel_reason": reason} if reason else {}
        echo_json({"run": run.what, **diagnosis_object(diagnosis), **because})
    else:
        notes = [f"note: {reason}"] if reason else []
        click.echo("\n".join([*notes, *report_lines(diagnosis, run.what)]))
    return 0 if diagnosis.can_train and run.measured.is_sound else 1


def _run(target: Path | None, command: tuple[str, ...], options: Options) -> tuple[DiagnosedRun | UnplannedRun, str]:
    """Return the run, its nodes linked as --topology says, and how large that lets tensor parallelism be."""
    from zenith_tune.describe.topology import read_topology, tensor_reason, with_topology
    from zenith_tune.doctor.diagnosed_run import RunHints, UnplannedRun
    from zenith_tune.doctor.studied_run import find_run
    from zenith_tune.shell import ParsedCommand

    path = options["topology"]
    topology = read_topology(path) if path is not None else None
    named = {"model": options["model"]} if options["model"] is not None else {}
    hints = RunHints(preset=options["preset"], args={**pairs(options), **named}, cluster=options["cluster"])
    text = ParsedCommand.from_argv(command).text if command else None
    run = find_run(target, text, hints, db=options["db"], output_dir=options["output_dir"])
    if topology is None or isinstance(run, UnplannedRun):
        return run, ""
    cluster = with_topology(run.subject.cluster, topology, path.name)
    return replace(run, subject=replace(run.subject, cluster=cluster)), tensor_reason(cluster, topology)
