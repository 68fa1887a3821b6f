"""A plan written down for a framework: as a file, or alone on stdout."""

from __future__ import annotations

from pathlib import Path

import click

from zenith_tune.errors import UsageError
from zenith_tune.output_file import write_output
from zenith_tune.presets.emission import Emission


def write_emission(emission: Emission, folder: Path) -> None:
    """Write the file into a folder, a script so that it can be run."""
    path = folder / emission.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise UsageError(f"--output: {path} is a link or no file, and is not written to: give another folder")
        write_output(path, emission.text)
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be written ({error.strerror}): give another folder") from None
    if path.suffix == ".sh":
        path.chmod(path.stat().st_mode | 0o111)


def print_emission(emission: Emission, folder: Path | None) -> None:
    """Print the notes and where the file is; without a folder the file alone goes to stdout."""
    to_stderr = folder is None
    click.echo(err=to_stderr)
    for note in emission.notes:
        click.echo(f"note: {note}", err=to_stderr)
    if folder is None:
        click.echo(emission.text, nl=False)
    else:
        click.echo(f"written: {folder / emission.file_name}")
