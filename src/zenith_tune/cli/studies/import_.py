"""The command `zenithtune import`: a study of another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import PathType, debug_option, path_option
from zenith_tune.units import count


@click.command(name="import", short_help="Read a study of another machine from the file of export --bundle.")
@click.option("--study-name", metavar="NAME", help="Its name here. [default: its own]")
@path_option("--output-dir", metavar="DIR", help="Where studies are kept. [default: zenithtune-out]")
@debug_option
@click.argument("bundle", metavar="FILE", type=PathType(), shell_complete=completion.files)
def import_study(bundle: Path, study_name: str | None, output_dir: Path | None, **_: Any) -> int:
    """Add a study of another machine to those of this one, for report, doctor, list, compare and calibrate.

    What its machine had learned is the start of the next study here of the same framework and kind of GPU, unless
    more runs were measured here. A study that is here is never written over.

    \b
    zenithtune import first.study.gz
    zenithtune report first
    """
    from zenith_tune.record.bundle import import_bundle
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR
    from zenith_tune.record.storage import expanded

    found = import_bundle(bundle, expanded(output_dir) if output_dir else DEFAULT_OUTPUT_DIR, study_name)
    by = f" by zenith-tune {found.versions['zenith-tune']}" if "zenith-tune" in found.versions else ""
    click.echo(f"{found.folder}: {count(found.num_trials, 'trial')}{by}; zenithtune report {found.folder.name}")
    if found.learned is not None:
        click.echo(f"learned: new studies begin with its calibration, in {found.learned}")
    return 0
