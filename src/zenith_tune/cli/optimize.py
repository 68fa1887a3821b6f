"""The command `zenithtune optimize`: runs a training command again and again with other options."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import RecordedCommand, debug_option, help_all_option, options_of
from zenith_tune.errors import StudyInterrupted, UsageError, ZenithTuneError
from zenith_tune.tuning.options import TuneOptions
from zenith_tune.units import GIB

if TYPE_CHECKING:
    from zenith_tune.tuner import PresetTuner
    from zenith_tune.tuning.config import StudyConfig
    from zenith_tune.tuning.events import StudyEnd, StudyListener

SCREEN = ("verbose", "quiet", "diff")
"""Options about what is printed."""
PLACE = ("output_dir", "study_name", "db", "resume", "retry_failed", "debug", "notify", *SCREEN)
"""Options about where a study is, how it is continued now and who hears of it: none is kept for the next time."""


@click.command(cls=RecordedCommand, short_help="Find the fastest options for a training command by short real trials.")
@options_of(TuneOptions)
@click.option("--dry-run", is_flag=True, help="Print what would run and what is pruned; run nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Print all: how trials are picked, predictions, every setting.")
@click.option("-q", "--quiet", is_flag=True, help="Print the best command alone.")
@click.option("--diff", is_flag=True, help="Print what the best command has in place of your own, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line on stdout; text for people on stderr.")
@debug_option
@help_all_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...",
                shell_complete=completion.files)  # fmt: skip
def optimize(command: tuple[str, ...], dry_run: bool, as_json: bool, debug: bool, **options: Any) -> int:
    """Run COMMAND a few times with other options, and print the fastest command.

    Everything after -- is the training command that you already use. Only tuned options change; where options find no
    safe place, write {tp}, {mbs} and so on where the values belong.

    \b
    zenithtune optimize -- bash train.sh
    zenithtune optimize --space batch-size=4,8,16 -- python train.py
    zenithtune optimize --preset megatron --gpus 8 --gbs 16 -- bash train.sh
    """
    from zenith_tune.shell import ParsedCommand
    from zenith_tune.tuner import PresetTuner

    screen = {name: options.pop(name) for name in SCREEN}
    if sum(screen.values()) > 1:
        raise UsageError("--verbose, --quiet and --diff exclude one another", hint="give one of them")
    tuner: PresetTuner = PresetTuner(
        ParsedCommand.from_argv(command).text,
        listener=lambda: _listener(tuner, as_json=as_json, **screen),
        words=RecordedCommand.given(PLACE),
        owns_process=not dry_run,
        **options,
    )
    for line in _notes(tuner.config):
        click.echo(f"zenithtune: warning: {line}", err=True)
    if dry_run:
        from zenith_tune.report.dry_run import DryRunJson, DryRunText
        from zenith_tune.report.dry_run import dry_run as walk_through

        walk_through(tuner.config, tuner.tuned_job(), DryRunJson(sys.stdout) if as_json else DryRunText(sys.stdout))
        return 0
    try:
        best_value, _ = tuner.optimize()
    except StudyInterrupted as error:  # caught here, because click takes every KeyboardInterrupt for Ctrl-C
        return 128 + error.signum
    if best_value is None:
        return 1
    return _train(tuner.config, as_json) if tuner.config.preset.asked_tuning(tuner.config.command) == "run" else 0


def _train(config: StudyConfig, as_json: bool) -> int:
    """Run the best command, as one that asked to be tuned and run does, and return how it ended."""
    import subprocess

    from zenith_tune.tuning.resolve import resolve_runner

    script = config.place.folder.best_command
    runner = resolve_runner(config.options)
    if not isinstance(runner, tuple) or runner[0] != "local":
        click.echo(f"zenithtune: the best command is left to be run where its job belongs: {script}", err=True)
        return 0
    click.echo(f"zenithtune: training by {script}", err=True)
    return subprocess.run(["bash", script], stdout=sys.stderr if as_json else None).returncode


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


def _listener(tuner: PresetTuner, *, verbose: bool, quiet: bool, diff: bool, as_json: bool) -> StudyListener:
    from rich.console import Console

    from zenith_tune.record.export import command_to_copy
    from zenith_tune.report.json_lines import JsonLinesReporter
    from zenith_tune.report.terminal.terminal import QuietReporter, TerminalReporter
    from zenith_tune.report.terminal.verbose import VerboseReporter
    from zenith_tune.shell.command_diff import command_diff
    from zenith_tune.tuning.events import StudyListener

    # A live display and JSON on one terminal would write over one another.
    console, live = Console(stderr=as_json, highlight=False), not (as_json and sys.stdout.isatty())
    people: StudyListener

    def page(end: StudyEnd) -> Path | None:
        return _write_page(tuner, end)

    if as_json and (quiet or diff):
        people = StudyListener()
    elif quiet or diff:
        own = tuner.config.masked_command

        def shown(best: str) -> str:
            return command_to_copy(own, best) if quiet else "\n".join(command_diff(own, best))

        people = QuietReporter(lambda end: shown(end.best_command or own), page)
    elif verbose:
        people = VerboseReporter(console, live=live, page=page)
    else:
        people = TerminalReporter(console, live=live, page=page)
    return JsonLinesReporter(sys.stdout, people) if as_json else people


def _write_page(tuner: PresetTuner, end: StudyEnd) -> Path | None:
    """Write the study's page into its folder; None where there is nothing to show, or no room for it."""
    from zenith_tune.record.reader import StudyReader
    from zenith_tune.report.html.page import render_page
    from zenith_tune.report.study_digest import StudyDigest
    from zenith_tune.study.files import write_atomically

    place = tuner.config.place
    path, reader = place.folder.page, StudyReader(place.database_url, place.study_name)
    try:
        diagnosis = end.diagnosis if end.study.is_sound else []
        write_atomically(path, render_page(StudyDigest(reader, diagnosis or None).object()))
    except (OSError, ZenithTuneError):
        return None
    return path
