"""The command `zenithtune recover`: a lost or damaged database, rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zenith_tune.cli.options import PathType, debug_option
from zenith_tune.units import count


@click.command(short_help="Rebuild a lost or damaged database from the trials' own files.")
@click.option("--db", type=PathType(), metavar="FILE",
              help="The database to write. [default: studies.db in the output folder]")  # fmt: skip
@debug_option
@click.argument("folder", metavar="FOLDER", type=PathType())
def recover(folder: Path, db: Path | None, **_: Any) -> int:
    """Write the studies of FOLDER into their database again, so that they can be resumed, reported and served.

    FOLDER is that of a study, or an output folder with several. A database that cannot be read is put aside, never
    removed; one that can keeps what it has, and gets the studies that it lacks.

    \b
    zenithtune recover zenithtune-out
    """
    from zenith_tune.record.recovery import recover as recovered

    studies, damaged = recovered(folder, db)
    if damaged is not None:
        click.echo(f"the damaged database is now {damaged}")
    for study in studies:
        parts = [f"{count(study.num_finished, 'finished trial')}"]
        parts += [f"{study.num_unfinished} to run again"] if study.num_unfinished else []
        parts += [f"{study.num_lost} whose files are gone"] if study.num_lost else []
        click.echo(f"recovered study {study.name}: {', '.join(parts)}")
    click.echo("to continue a study, rerun its command with --resume")
    return 0
