"""What to try after a study: what it left untried and why, each with the command that tries it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from zenith_tune.record.view import StudyView, unfinished
from zenith_tune.study.files import Json
from zenith_tune.study.lever_results import LeverStatus, results_from_json
from zenith_tune.units import count

_ALLOW = re.compile(r": give --allow (\w+)")
_PACKAGE = "needs the package"
_CHANGE, _WRITTEN = "   change ", "   written by: "
MORE = 2
"""How many times a budget that was spent is proposed next."""


def next_experiments(view: StudyView, advice: Sequence[str]) -> list[Json]:
    """Return the experiments that a study which does not run suggests; `advice` is its diagnosis, line by line."""
    if view.running:
        return []
    found = [*_continued(view), *_levers(view), *_advised(advice)]
    return [{"what": what, "why": why, "command": command} for what, why, command in found]


def _continued(view: StudyView) -> Iterator[tuple[str, str, str]]:
    """Yield how the study continues, where its end left something over."""
    search, folder = view.search, view.folder
    working = Path(view.header.working_folder)
    if folder is not None and view.header.working_folder and folder.is_relative_to(working):
        folder = folder.relative_to(working)
    resume = f"zenithtune resume {shlex.quote(str(folder or view.name))}"
    if num_left := len(unfinished(view)):
        yield "Continue the study", f"{count(num_left, 'trial')} did not finish", resume
    elif search.stopped and "budget" in search.stopped:
        hours = search.budget.gpu_hours or search.budget.max_hours
        name = "gpu-hours" if search.budget.gpu_hours else "max-hours" if hours else "n-trials"
        more = MORE * (hours or view.study.num_budgeted)
        yield "Continue with a larger budget", search.stopped, f"{resume} --{name} {more:g}"


def _levers(view: StudyView) -> Iterator[tuple[str, str, str]]:
    """Yield the performance settings that were not tried, though they may help."""
    header, seen = view.header, set()
    for result in results_from_json(view.search.verdict.get("levers", ()) if view.search.stopped else ()):
        allow = _ALLOW.search(result.why)
        name = allow[1] if allow else result.lever
        if result.status is not LeverStatus.NOT_TRIED or name in seen or not (allow or _PACKAGE in result.why):
            continue
        seen.add(name)
        known = allow is not None and header.options is not None
        words = ["zenithtune", "optimize", *(header.options or ()), "--allow", name, "--"]
        yield f"Test {name}", _ALLOW.sub("", result.why), f"{shlex.join(words)} {header.command}" if known else ""


def _advised(advice: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the changes that the diagnosis has a command for."""
    change = ""
    for line in advice:
        if line.startswith(_CHANGE):
            change = line.removeprefix(_CHANGE)
        elif line.startswith(_WRITTEN):
            yield f"Change {change}", "advised by the diagnosis", line.removeprefix(_WRITTEN)
