"""The command `zenithtune compare`: two studies side by side on the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import debug_option, echo_json, json_option, study_place
from zenith_tune.study.files import Json


@click.command(short_help="Compare two studies: best, gain, time spent, and the options that differ.")
@study_place
@json_option
@debug_option
@click.argument("first", metavar="A", shell_complete=completion.studies)
@click.argument("second", metavar="B", shell_complete=completion.studies)
def compare(first: str, second: str, **options: Any) -> int:
    """Put two studies side by side: their bests, gains and costs, and what they were made with.

    A and B are names, folders, or study.json files. `zenithtune report A --compare B` writes the same as a page, with
    the layouts that ran in both.

    \b
    zenithtune compare before-upgrade after-upgrade
    """
    from zenith_tune.cli.report import study_content
    from zenith_tune.record.source import find_study
    from zenith_tune.report.study_comparison import compared

    place = {"db": options["db"], "output_dir": options["output_dir"]}
    content = compared(*(study_content(find_study(name, **place)) for name in (first, second)))
    if options["as_json"]:
        echo_json(content)
        return 0
    for line in _lines(content, shutil.get_terminal_size().columns):
        click.echo(line)
    return 0


def _lines(content: Json, width: int) -> Iterator[str]:
    from zenith_tune.shell.scripts.opened import training_line

    names = [study["name"] for study in content["studies"]]
    said = f"{names[1]} is {content['verdict']} {names[0]}" if content["verdict"] else content["why_no_gain"]
    yield from filter(None, (said, content["caution"]))
    yield ""
    yield from _side_by_side(["", *names], content["summary"], width)
    if content["differences"]:
        yield ""
        yield from _side_by_side(["made with", *names], content["differences"], width)
    for study in content["studies"]:
        if study["best_command"]:
            yield ""
            yield f"fastest command of {study['name']}:"
            yield training_line(study["best_command"])


def _side_by_side(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows in columns; one that is too wide for them has each value on a line of its own."""
    names = max(len(row[0]) for row in (heads, *rows))
    room = (width - names - 4) // 2
    fitting = [row for row in (heads, *rows) if max(map(len, row[1:])) <= room]
    size = max((len(row[1]) for row in fitting), default=0)
    for row in (heads, *rows):
        if row in fitting:
            yield f"{row[0]:<{names}}  {row[1]:<{size}}  {row[2]}".rstrip()
        else:
            yield from (row[0], f"  {row[1]}", f"  {row[2]}")
