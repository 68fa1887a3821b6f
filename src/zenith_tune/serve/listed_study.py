"""What a list says of each study, on the terminal and as a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from zenith_tune import __version__
from zenith_tune.errors import UsageError
from zenith_tune.record.source import StudySource
from zenith_tune.serve.live_study import LiveState, control_of, live_state
from zenith_tune.serve.running_progress import SteadySource
from zenith_tune.study.files import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStudy:
    """Hold what a list says of a study."""

    name: str
    state: LiveState
    preset: str = ""
    num_trials: int = 0
    """The user's own command is not counted."""
    best: float | None = None
    """The value of the fastest run, which may be the user's own command."""
    unit: str = ""
    gain: float | None = None
    """Over the user's own command; None where there is nothing to compare."""
    started_s: float | None = None
    """Seconds since 1970."""


def listed_study(source: StudySource) -> ListedStudy:
    """Return what there is to say of a study; one that cannot be read is listed as such."""
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
        preset=view.header.preset,
        num_trials=sum(not each.trial.is_baseline for each in view.trials),
        best=None if fastest is None else fastest.value,
        unit=view.unit,
        gain=0.0 if gain is not None and fastest is view.baseline else gain,
        started_s=view.started_s or view.search.begun_s or None,
    )


def list_object(sources: Iterable[StudySource], place: str, address: Callable[[str], str | None]) -> Json:
    """Return all studies as the data of a page; `address` says where each has a page of its own."""
    return {
        "kind": "studies",
        "made_by": f"zenithtune {__version__}",
        "title": "All studies",
        "place": place,
        "now_s": time.time(),
        "studies": [{**asdict(study), "href": address(study.name)} for study in map(listed_study, sources)],
    }
