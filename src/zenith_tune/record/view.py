"""A study as it stands in its record, for whoever shows it: finished and running trials, the best, the times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, chdir
from dataclasses import dataclass, field
from pathlib import Path

from zenith_tune.errors import StudyError
from zenith_tune.evaluators.failures.failures import ending_lines
from zenith_tune.record.search import StudySearch
from zenith_tune.shell.secret_names import shaped_secrets
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.trial_log import WHOLE_LINE_LENGTH

# Each name of a secret has one of these in it; the rates that trainers print at every step are no names.
_INFORMATIVE = re.compile(
    r"secret|pass|pw|credential|token(?!s?(?:/|_per_| per ))|key|auth|login|cookie", re.IGNORECASE
)


def mask_lines(lines: Sequence[str]) -> list[str]:
    """Return lines with the secrets in plain sight masked, in a fraction of the time that a command takes."""
    text = "\n".join(lines)
    informative = [index for index, line in enumerate(lines) if _INFORMATIVE.search(line)]
    # A name at the end of a line has its value on the next.
    near = sorted({index + more for index in informative for more in (-1, 0, 1) if 0 <= index + more < len(lines)})
    found = find_secrets("\n".join(lines[index] for index in near)) if near else []
    return mask(text, [*found, *shaped_secrets(text)]).split("\n") if lines else []


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyHeader:
    """What makes two trials comparable: a study is resumed only under the same header."""

    preset: str
    args: dict[str, str]
    command: str
    evaluator: str
    working_folder: str = field(default="", compare=False)
    """Where the command was started; empty in records of earlier releases."""
    options: list[str] | None = field(default=None, compare=False)
    """The options of the last `zenithtune optimize` that ran it, but for where it is kept; None where not recorded."""

    @classmethod
    def from_stored(cls, stored: object, study_name: str) -> StudyHeader:
        """Return the header that a record holds; refuses one that something else wrote."""
        try:
            header = cls(**stored) if isinstance(stored, dict) else None
        except TypeError:
            header = None
        if header is None or not isinstance(header.command, str):
            problem = f"study {study_name!r} is not one of zenithtune's, or has not begun"
            raise StudyError(problem, hint="choose another --study-name")
        return header

    def at_home(self) -> AbstractContextManager[None]:
        """Return a context in the folder where the command was started, if it is on this machine."""
        return chdir(self.working_folder if self.working_folder and Path(self.working_folder).is_dir() else ".")

    def check_same(self, other: StudyHeader, study_name: str) -> None:
        """Refuse to resume a study of another preset, command or objective."""
        for name in ("preset", "args", "command", "evaluator"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                how = " (--objective NAME, or --evaluator)" if name == "evaluator" else ""
                problem = f"study {study_name!r} was made with {name} {theirs!r}, not {mine!r}"
                hint = f"its trials cannot be compared; give the same {name}{how}, or choose another --study-name"
                raise StudyError(problem, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial, running or ended, with its times and its name."""

    trial: Trial
    """What is known of it; one that runs has no outcome yet, and is held as cancelled."""
    label: str = ""
    """What its tuner called it; nothing where the record does not say."""
    started_s: float | None = None
    """Seconds since 1970."""
    ended_s: float | None = None
    is_running: bool = False
    host: str = ""
    """Where it runs, of a study that several machines work on."""
    claim: str = ""
    """Under which claim a tuner of a shared database wrote it."""

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def state(self) -> str:
        """How it ended, or that it runs."""
        return "running" if self.is_running else str(self.trial.outcome)

    def log_lines(self, count: int) -> list[str]:
        """Return what its log ends with or failed by, of its last run of several; secrets in plain sight masked."""
        if self.trial.folder is None:
            return []
        for folder in reversed(TrialFolder(self.trial.folder).runs()):
            if lines := ending_lines(folder.log, self.trial.cause, count, WHOLE_LINE_LENGTH):
                # The log of a trial that runs is not masked yet.
                return mask_lines(lines)
        return []

    def files(self) -> list[str]:
        """Return the names of the files that the trial left in its folder."""
        try:
            # A trial may leave thousands.
            return sorted(path.name for path in self.trial.folder.iterdir())[:50] if self.trial.folder else []
        except OSError:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """A study at one moment."""

    name: str
    header: StudyHeader
    direction: Direction
    trials: tuple[TrialView, ...]
    """All of them in order, the user's own command and those that were tried again included."""
    study: Study
    """The finished ones: of a run that was tried again, the last time counts."""
    folder: Path | None = None
    database: str = ""
    """Where it was read, for people; empty of an export."""
    num_pruned: int | None = None
    """Points that no trial was spent on; None where the record does not say."""
    num_repeated: int | None = None
    best_command: str | None = None
    """The fastest command, ready to paste."""
    search: StudySearch = field(default_factory=StudySearch)
    """By which strategy, for how many trials, why it stopped and what the strategy found; empty where not recorded."""

    @property
    def baseline(self) -> Trial | None:
        """The user's own command."""
        return self.study.baseline

    @property
    def best(self) -> Trial | None:
        """The best trial, the user's own command left out."""
        return self.study.best

    @property
    def unit(self) -> str:
        return next((view.trial.unit for view in self.trials if view.trial.ok and view.trial.unit), "")

    @property
    def running(self) -> tuple[TrialView, ...]:
        """Trials that have not ended: they run, or their tuner was killed."""
        return tuple(view for view in self.trials if view.is_running)

    @property
    def started_s(self) -> float | None:
        """When the first trial began."""
        return min((view.started_s for view in self.trials if view.started_s is not None), default=None)

    @property
    def ended_s(self) -> float | None:
        """When the last trial ended; None while one runs."""
        ends = [view.ended_s for view in self.trials if view.ended_s is not None]
        return max(ends, default=None) if not self.running else None


def study_of(trials: Iterable[TrialView], direction: Direction, search: StudySearch) -> Study:
    """Return the study that ended trials make, by the rule by which one is resumed."""
    ended = [view.trial for view in trials if not view.is_running and view.trial.outcome is not Outcome.CANCELLED]
    last = {trial.key if trial.identity else trial.number: trial for trial in ended}
    study = Study(direction)
    study.limit_memory(search.memory_limit_bytes)
    study.earlier_launches = search.launches
    study.max_trials = search.max_trials
    for trial in sorted(last.values(), key=lambda trial: trial.number):
        study.add(trial)
    return study


def unfinished(view: StudyView) -> list[TrialView]:
    """Return the trials that run or were cut off with their study, and have not run again since.

    One that was cancelled by hand, or by a scheduler, has a kind of failure: the study continued after it.
    """
    last = {each.trial.key if each.trial.identity else each.number: each for each in view.trials}
    return [each for each in last.values() if each.is_running or each.trial.was_cut_off]
