"""The trials that run, followed by their events: where each is, what is known of it, and how long it still runs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from zenith_tune.report.search_digest import StudyPace
from zenith_tune.study.study import Study
from zenith_tune.study.trial import AGAIN, YOUR_COMMAND, Trial
from zenith_tune.study.trial_log import printable
from zenith_tune.tuning.events import FIRST_STATE, StudyEnd, StudyListener, StudyPlan
from zenith_tune.units import format_seconds

FAR_LONGER = 2.0
"""How many times the time left must be what is shown, for it to rise before it has run out."""


@dataclass(slots=True)
class Countdown:
    """Time that is left: it falls with the clock, and rises only where it has run out or is far longer than thought."""

    end_s: float | None = None

    def expect(self, left_s: float | None) -> None:
        """Take in a new estimate; None where there is none any more."""
        shown_s = self.left_s
        if left_s is None:
            self.end_s = None
        elif not shown_s or left_s < shown_s or left_s > FAR_LONGER * shown_s:
            self.end_s = time.monotonic() + left_s

    @property
    def left_s(self) -> float | None:
        """Return the seconds that are left; None where they have run out, or are not known."""
        left_s = 0.0 if self.end_s is None else self.end_s - time.monotonic()
        return left_s if left_s > 0 else None


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """A trial that runs."""

    name: str
    label: str
    state: str
    known: str = ""
    """What is known of it, and why it still runs."""
    left: Countdown = field(default_factory=Countdown)
    num_iterations: int | None = None
    start_s: float = field(default_factory=time.monotonic)

    @property
    def progress(self) -> str:
        """Where it is: waiting, starting or at which iteration, and how long it still takes."""
        if not self.num_iterations:
            state = "starting" if self.state == FIRST_STATE else self.state
            return f"{state}, {format_seconds(time.monotonic() - self.start_s)}"
        left_s = self.left.left_s
        left = "" if left_s is None else f", about {format_seconds(left_s)} left"
        return f"iteration {self.num_iterations}{left}"


class RunningTrials(StudyListener):
    """A listener that follows the trials that run, and how far the study is."""

    def __init__(self) -> None:
        self.study: Study | None = None
        self.pace = StudyPace()
        self.running: dict[int, RunningTrial] = {}
        """By number; drawn by another thread while trials come and go."""
        self.labels: dict[int, str] = {}
        self._left = Countdown()
        self._first_state = FIRST_STATE

    def begin(self, study: Study, pace: StudyPace, first_state: str = FIRST_STATE) -> None:
        self.study, self.pace, self._first_state = study, pace, first_state
        self._left.expect(pace.left_s(study))

    def study_started(self, plan: StudyPlan) -> None:
        self.labels |= plan.labels
        bounds = {"num_slots": plan.num_slots, "num_gpus": plan.num_gpus}
        self.begin(plan.study, StudyPace(budget=plan.budget, **bounds), plan.first_state)

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
        self.labels[number] = label
        self.running[number] = RunningTrial(name=self.name_of(number), label=label, state=self._first_state)

    def trial_state(self, number: int, state: str) -> None:
        if (running := self.running.get(number)) is not None:
            running.state = state

    def trial_progress(self, number: int, num_iterations: int, value: float | None, unit: str) -> None:
        if (running := self.running.get(number)) is not None:
            running.num_iterations = num_iterations

    def trial_outlook(self, number: int, known: str, left_s: float | None) -> None:
        if (running := self.running.get(number)) is not None:
            running.known = known
            running.left.expect(left_s)

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        self.running.pop(trial.number, None)
        self._left.expect(self.pace.left_s(study))

    def trial_recalled(self, trial: Trial, label: str) -> None:
        self.labels[trial.number] = label

    def name_of(self, number: int) -> str:
        """Return what a trial that runs is called: of one that repeats another, all that is known is its label."""
        label, own = self.labels.get(number, ""), self.study.own_runs if self.study is not None else []
        if label.startswith(YOUR_COMMAND) and self.study is not None and own:
            return f"{self.study.name_of(own[-1])}'"
        first = next((each for each, known in self.labels.items() if known + AGAIN == label), None)
        times = sum(known == label for each, known in self.labels.items() if each <= number)
        return str(number) if first is None else f"{first}" + "'" * times

    def how_far(self) -> list[str]:
        """Return how far the study is, how long it still takes, and what it has spent of a budget."""
        return [] if self.study is None else self.pace.describe(self.study, self._left.left_s)

    def bar(self) -> str:
        return "" if self.study is None else self.pace.bar(self.study)


class ConsoleReporter(RunningTrials):
    """A listener that prints what happens; on a terminal the trials that run are drawn live below it.

    `page` writes the study's page once it is over, and returns where.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        live: bool = True,
        page: Callable[[StudyEnd], Path | None] = lambda end: None,
    ) -> None:
        super().__init__()
        self._console = console or Console(stderr=True, highlight=False)
        self._wants_live, self._page = live, page
        self._live: Live | None = None

    @abstractmethod
    def draw(self) -> RenderableType:
        """Return what is drawn live."""

    def noted(self, line: str) -> None:
        self._say(f"note: {line}")

    def _start_live(self) -> None:
        if self._console.is_terminal and self._wants_live:
            # It gives way to the final table, so that nothing stands on the screen twice.
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self.draw, transient=True)
            self._live.start()

    def _stop_live(self) -> bool:
        """End what is drawn live, and tell whether there was any."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        return live is not None

    def _say(self, line: str) -> None:
        """Print a line as it is: no colour, no wrapping, so that it can be pasted."""
        self._console.print(Text(printable(line)), soft_wrap=True)
