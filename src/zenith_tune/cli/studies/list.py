"""The command `zenithtune list`: the studies of a folder or a database."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli.options import debug_option, echo_json, json_option
from zenith_tune.errors import UsageError
from zenith_tune.units import format_gain, format_value

if TYPE_CHECKING:
    from zenith_tune.record.source import StudySource
    from zenith_tune.serve.live_study import LiveState

HEADS = ("study", "trials", "best", "gain", "state", "started")
RIGHT = ("trials", "best", "gain")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStudy:
    """Hold what a list says of a study."""

    name: str
    state: LiveState
    num_trials: int = 0
    """The user's own command is not counted."""
    best: float | None = None
    """The value of the fastest run, which may be the user's own command."""
    unit: str = ""
    gain: float | None = None
    """Over the user's own command; None where there is nothing to compare."""
    started_s: float | None = None
    """Seconds since 1970."""


@click.command(name="list", short_help="List the studies of a folder or a database.")
@click.option("--db", metavar="PATH|URL", help="List those of a database. [default: FOLDER/studies.db]")
@json_option
@debug_option
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(path_type=Path))
def list_studies(folder: Path | None, db: str | None, as_json: bool, **_: Any) -> int:
    """List all studies: trials, best value, gain over your own command, state, and when it was started.

    FOLDER is where studies are kept [default: zenithtune-out]. The study that was begun last comes first.

    \b
    zenithtune list
    zenithtune list /shared/zenithtune-out
    """
    from zenith_tune.record.source import studies_in

    studies = [listed_study(source) for source in studies_in(folder, db=db)]
    if as_json:
        echo_json({"studies": [asdict(study) for study in studies]})
        return 0
    for line in _table([HEADS, *map(_cells, studies)], shutil.get_terminal_size().columns):
        click.echo(line)
    return 0


def listed_study(source: StudySource) -> ListedStudy:
    """Return what there is to say of a study; one that cannot be read is listed as such."""
    from zenith_tune.serve.live_study import LiveState, control_of, live_state
    from zenith_tune.serve.running_progress import SteadySource

    steady = SteadySource(source)
    try:
        view = steady.view()
    except UsageError:
        return ListedStudy(name=source.name, state=LiveState.UNREADABLE)
    control = control_of(view)
    fastest, gain = view.study.fastest, view.study.gain
    return ListedStudy(
        name=view.name,
        state=live_state(steady, view, is_paused=control is not None and control.is_paused()),
        num_trials=sum(not each.trial.is_baseline for each in view.trials),
        best=None if fastest is None else fastest.value,
        unit=view.unit,
        gain=0.0 if gain is not None and fastest is view.baseline else gain,
        started_s=view.started_s or view.search.begun_s or None,
    )


def _cells(study: ListedStudy) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.started_s)) if study.started_s else "–"
    best = "–" if study.best is None else format_value(study.best, study.unit)
    gain = "–" if study.gain is None else format_gain(study.gain) if study.gain else "none"
    return study.name, f"{study.num_trials:,}", best, gain, str(study.state), started


def _table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield rows within `width`; where the names are too long for that, each stands on a line of its own."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_apart = sum(widths) + 2 * (len(widths) - 1) > width
    for row in rows:
        name, *cells = (
            cell.rjust(size) if head in RIGHT else cell.ljust(size)
            for head, cell, size in zip(HEADS, row, widths, strict=True)
        )
        if is_apart:
            yield name.rstrip()
        yield "  ".join(["" if is_apart else name, *cells]).rstrip()
