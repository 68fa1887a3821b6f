"""The command `zenithtune doctor`: what limits a run, and what to change, by the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import (
    PathType,
    args_option,
    calibration_option,
    debug_option,
    echo_json,
    job_options,
    json_option,
    pairs,
    risk_option,
    study_place,
    topology_option,
)

COMMAND = "zenith_tune.cli.doctor"
"""Where a context keeps the training command."""


class _BeforeCommand(click.Command):
    """A command that keeps what stands behind -- apart, so that a log is not mistaken for a training command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, []
        if "--" in args:
            place = args.index("--")
            own, command = args[:place], args[place + 1 :]
        ctx.meta[COMMAND] = tuple(command)
        return super().parse_args(ctx, own)


@click.command(cls=_BeforeCommand, short_help="Say what limits a run, what to change, and what that would bring.")
@click.option("--model", metavar="NAME|PATH", shell_complete=completion.models,
              help="What was trained: a name of the catalog, a config.json, or an id of the Hugging Face Hub. "
              "[default: the command's, the log's or the study's]")  # fmt: skip
@click.option("--cluster", metavar="NAME|PATH", shell_complete=completion.clusters,
              help="Where it runs, e.g. h100x64. [default: the study's; this machine]")  # fmt: skip
@job_options
@topology_option()
@click.option("--preset", metavar="NAME", help="What reads the command. [default: the study's, or by the command]")
@args_option("What the command does not say: vocab=128256.")
@risk_option("Propose nothing that runs out of memory with this probability or more.")
@calibration_option()
@click.option("--against", metavar="published|STUDY|LOG",
              help="Also say why it is slower than another run, cause by cause: the nearest published one, or one of "
              "yours; a log that does not show its command takes it too: 'LOG -- COMMAND'.")  # fmt: skip
@click.option("--self", "of_installation", is_flag=True,
              help="Print what is installed here and what is missing, for bug reports.")  # fmt: skip
@study_place
@json_option
@debug_option
@click.argument("target", required=False, type=PathType(), metavar="[STUDY|LOG] [-- COMMAND...]",
                shell_complete=completion.studies)  # fmt: skip
@click.pass_context
def doctor(context: click.Context, /, target: Path | None, **options: Any) -> int:
    """Name what slows a run down, with its number, and the change that helps, with the gain that the planner predicts.

    STUDY is a study's name, its folder, or its study.json, LOG what a run printed; Megatron-LM's log states its job
    itself, a trial's log has its study, and other logs need the COMMAND too. A command alone is diagnosed by its plan;
    with nothing at all it is the study begun last.

    \b
    zenithtune doctor megatron-lm-20260801-120000
    zenithtune doctor train.log --cluster h100x64
    zenithtune doctor --cluster h100x64 -- bash train.sh
    zenithtune doctor train.log --against published
    zenithtune doctor today.log --against yesterday.log
    zenithtune doctor --self

    Exit code: 0 the run trains, 1 it failed, is kept waiting or fits nowhere, 2 a mistake in the command line.
    """
    if options["of_installation"]:
        from zenith_tune.doctor.installation import installation_lines

        by_user = click.core.ParameterSource.COMMANDLINE
        given = {name for name in context.params if context.get_parameter_source(name) is by_user}
        if context.meta[COMMAND] or given - {"of_installation", "debug"}:
            raise click.UsageError("--self describes this installation alone: give nothing else with it")
        click.echo("\n".join(installation_lines()))
        return 0
    from zenith_tune.api.diagnose import diagnose
    from zenith_tune.shell import ParsedCommand

    command = context.meta[COMMAND]
    same = ("model", "cluster", "topology", "preset", "risk", "calibration", "db", "output_dir", "against")
    found = diagnose(
        target,
        command=ParsedCommand.from_argv(command).text if command else None,
        args=pairs(options),
        **{name: options[name] for name in same},
    )
    if options["as_json"]:
        echo_json(found.as_json())
    else:
        click.echo(str(found))
    return 0 if found.is_sound else 1
