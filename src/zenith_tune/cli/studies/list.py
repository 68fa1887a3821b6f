"""The command `zenithtune list`: the studies of a folder or a database."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from zenith_tune.cli.options import (
    PathType,
    debug_option,
    echo_json,
    json_option,
    path_option,
    refuse_file,
    study_place,
    write_file,
)
from zenith_tune.errors import UsageError
from zenith_tune.units import format_gain, format_value

if TYPE_CHECKING:
    from zenith_tune.record.source import StudySource
    from zenith_tune.serve.study_index import ListedStudy

HEADS = ("study", "trials", "best", "gain", "state", "started")
RIGHT = ("trials", "best", "gain")


@click.command(name="list", short_help="List the studies of a folder or a database.")
@study_place
@path_option("--html", help="Also write the list as one HTML page, with links to the pages of the studies.")
@json_option
@debug_option
@click.argument("folder", metavar="[FOLDER]", required=False, type=PathType())
def list_studies(
    folder: Path | None, output_dir: Path | None, db: str | None, html: Path | None, as_json: bool, **_: Any
) -> int:
    """List all studies: trials, best value, gain over your own command, state, and when it was started.

    FOLDER is the same as --output-dir. The study that was begun last comes first.

    \b
    zenithtune list
    zenithtune list /shared/zenithtune-out --html studies.html
    """
    if folder is not None and output_dir is not None:
        raise UsageError("FOLDER and --output-dir say the same", hint="give one of them")
    folder = folder or output_dir
    refuse_file(html, "--html")
    from zenith_tune.record.source import studies_in
    from zenith_tune.serve.study_index import listed_study

    sources = studies_in(folder, db=db)
    if html is not None:
        _write_page(sources, html, folder, db)
    studies = [listed_study(source) for source in sources]
    if as_json:
        echo_json({"studies": [asdict(study) for study in studies]})
        return 0
    for line in _table([HEADS, *map(_cells, studies)], shutil.get_terminal_size().columns):
        click.echo(line)
    return 0


def _write_page(sources: list[StudySource], output: Path, folder: Path | None, db: str | None) -> None:
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR
    from zenith_tune.record.storage import expanded
    from zenith_tune.report.html.page import render_page
    from zenith_tune.serve.study_index import list_object

    root = expanded(folder) if folder else DEFAULT_OUTPUT_DIR

    def address(name: str) -> str | None:
        page = root / name / "report.html"
        return quote(os.path.relpath(page, output.parent)) if page.is_file() else None

    write_file(output, render_page(list_object(sources, db or str(root), address)), "--html")
    click.echo(f"written: {output}", err=True)


def _cells(study: ListedStudy) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.started_s)) if study.started_s else "–"
    best = "–" if study.best is None else format_value(study.best, study.unit)
    gain = "–" if study.gain is None else format_gain(study.gain) if study.gain else "none"
    return study.name, f"{study.num_trials:,}", best, gain, str(study.state), started


def _table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows within `width`: without the start where it is too little, else with each name on its own line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    num = next((num for num in (len(widths), len(widths) - 1) if sum(widths[:num]) + 2 * (num - 1) <= width), None)
    is_apart = num is None
    for row in rows:
        name, *cells = (
            cell.rjust(size) if head in RIGHT else cell.ljust(size)
            for head, cell, size in zip(HEADS[:num], row, widths, strict=False)
        )
        if is_apart:
            yield name.rstrip()
        yield "  ".join(["" if is_apart else name, *cells]).rstrip()
