"""The command `zenithtune resume`: continues a study with the options that it was started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli import completion
from zenith_tune.cli.options import debug_option, study_place
from zenith_tune.errors import StudyError, UsageError

if TYPE_CHECKING:
    from zenith_tune.record.view import StudyHeader


@click.command(
    short_help="Continue a study with the options that it was started with.",
    context_settings={"ignore_unknown_options": True},
)
@study_place
@debug_option
@click.argument("study", metavar="[STUDY]", required=False, shell_complete=completion.studies)
@click.argument("options", metavar="[OPTIONS OF OPTIMIZE]...", nargs=-1, type=click.UNPROCESSED)
def resume(study: str | None, options: tuple[str, ...], **place: Any) -> int:
    """Continue STUDY after Ctrl-C, a crash or a reboot, or with a larger budget; finished trials are kept.

    STUDY is its name, its folder, or the folder of several; of several, and without STUDY, the one begun last is
    continued. It runs where it was started, with the same command and options; options of `zenithtune optimize` that
    follow STUDY come on top, such as --n-trials or --retry-failed.

    \b
    zenithtune resume
    zenithtune resume megatron-lm-20260801-120000 --n-trials 40
    """
    from zenith_tune.cli.optimize import optimize
    from zenith_tune.record.reader import StudyReader
    from zenith_tune.record.source import find_study

    source = find_study(study, db=place["db"], output_dir=place["output_dir"])
    if not isinstance(source, StudyReader):
        hint = "where it ran, rebuild a lost database by zenithtune recover FOLDER; an import is continued there alone"
        raise StudyError(f"study {source.name!r} is in no database and cannot be continued", hint=hint)
    view = source.view()
    words = _words(view.header, options, source.name)
    root = view.folder.parent if view.folder is not None else place["output_dir"]
    where = ["--study-name", source.name, "--db", source.url, *(["--output-dir", str(root.absolute())] if root else [])]
    folder = Path(view.header.working_folder)
    if not folder.is_dir():
        raise UsageError(f"the study was started in {folder}, which is no folder any more", hint="make it again")
    os.chdir(folder)
    arguments = [*words, *where, "--resume", "--", view.header.command]
    return int(optimize.main(arguments, "zenithtune", standalone_mode=False))


def _words(header: StudyHeader, more: tuple[str, ...], name: str) -> list[str]:
    """Return the options to continue with; refuses where the record does not know them all."""
    from zenith_tune.shell.secrets import MASK

    by_hand = f"rerun your own zenithtune optimize command with --resume --study-name {name}"
    if "--" in more:
        raise UsageError("a study is continued with its own command", hint="leave out -- and what follows")
    if header.options is None:
        raise StudyError(f"the record of study {name!r} does not have the options it was started with", hint=by_hand)
    if any(MASK in word for word in (header.command, *header.options)):
        raise StudyError(f"the command of study {name!r} holds a secret, which is not recorded", hint=by_hand)
    return [*header.options, *more]
