"""The optional parts of a preset: small classes of methods, each with an answer that changes nothing.

A preset takes the parts that it needs as base classes, or just defines their methods; `completed` gives it the others.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UsageError
from zenith_tune.presets.base import TuningPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.units import whole

if TYPE_CHECKING:
    from zenith_tune.describe.job_spec import PlanSubject
    from zenith_tune.evaluators.short_steps import ShortSteps
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable
    from zenith_tune.presets.levers import Lever
    from zenith_tune.study.parameters import Parameter, Params, Value
    from zenith_tune.study.resources import InPlace, Resources
    from zenith_tune.study.trial import Prediction, Trial

NUMERIC_POINTS = 5
"""How many values of a numeric parameter are points of their own."""
MAX_POINTS = 1_000_000
"""The most points that are walked through one by one; a preset with more has rules by which to make fewer."""
TRAIN_STEPS = ("--train-iters", "--train_iters", "--max-steps", "--max_steps")
"""How training programs spell the number of steps."""


class Described(TuningPreset):
    """A preset that says what a point is called, what to know of the job, and what a run of it takes."""

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words, for a table's cell."""
        return " ".join(f"{name}={value}" for name, value in params.items())

    def describe_job(self, command: str) -> str:
        """Return the job in a few words: model, GPUs, batch, sequence; nothing where they are not known."""
        return ""

    def warnings(self, command: str) -> list[str]:
        """Return what the user of `command` should know before the first trial, one line each."""
        return []

    def notes(self, command: str) -> list[str]:
        """Return how `command` was read and is tuned, one line each, for those who ask."""
        return []

    def placeholder_names(self) -> set[str]:
        """Return the names that a command may hold in braces, such as {tp}."""
        return set(self.get_search_space())

    def resources(self, command: str) -> Resources:
        """Return what one run of `command` needs: nodes, and GPUs of each."""
        from zenith_tune.presets.shared.launched_gpus import launched_resources

        return launched_resources(command)

    def phases(self) -> Mapping[str, tuple[str, ...]]:
        """Return the phases of a step that each parameter touches, as the log names them; none without such."""
        return {}

    def default_trials(self) -> int | None:
        """Return the budget of trials that the job itself states; None: as many as the strategy needs."""
        return None

    def asked_tuning(self, command: str) -> str:
        """Return what `command` asks of a tuner whose place the study takes: tune, or also to run the best after it.

        Nothing where it only trains.
        """
        return ""

    def train_steps(self, command: str) -> int | None:
        """Return how many steps `command` trains, where it says so."""
        line = ParsedCommand.of(command)
        found = (whole(line.get(option) or "") for option in TRAIN_STEPS)
        return next((steps for steps in found if steps), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitDefault:
    """A parallel size that the framework takes because the command leaves it out, and the line that says another."""

    name: str
    """The size in short, such as "cp"."""
    size: int
    """The framework's default."""
    meant: int
    """The size that a command without it means."""
    key: str
    """The key by which it is set."""
    taken_by: str
    """The program whose default it is."""

    @property
    def finding(self) -> str:
        """What is wrong, in one line."""
        return f"your file leaves {self.key} out, which {self.taken_by} takes for {self.size}"

    @property
    def hint(self) -> str:
        """The line to write."""
        return f"set {self.key}: {self.meant}"


class Planned(TuningPreset):
    """A preset whose points are layouts, so that the planner can rank them before any runs."""

    def subject(self, command: str) -> PlanSubject | None:
        """Return model, cluster and job of `command` for the planner; None for a preset without plans.

        Raises UsageError with what is missing, and how to give it, where a plan could be made but for that.
        """
        return None

    def layout(self, params: Mapping[str, Value]) -> Layout | None:
        """Return the parallel layout that `params` stands for, where the framework has one."""
        return None

    def planned_layout(self, command: str, params: Mapping[str, Value]) -> Layout | None:
        """Return that layout with all that `command` itself says of it: sharding, sequence parallelism, kernels."""
        return self.layout(params)

    def own_point(self, command: str) -> Params | None:
        """Return the point that `command` itself stands for, where it is one of the search space."""
        return None

    def points(self) -> Iterator[Params]:
        """Yield every point that is worth a trial; numeric parameters by a few values each."""
        space = self.get_search_space()
        axes = [parameter.grid(NUMERIC_POINTS) for parameter in space.values()]
        for values in itertools.islice(itertools.product(*axes), MAX_POINTS):
            point = dict(zip(space, values, strict=True))
            if not self.prune(point):
                yield point

    def tables(self, command: str) -> Iterator[tuple[LayoutBatch, PointTable]] | None:
        """Yield the points many at a time, with the layouts that are planned of them; None: one by one."""
        return None

    def tries(self, layout: Layout) -> bool:
        """Return whether a study that leaves the search to this preset may try a layout."""
        return True

    def predicted(self, params: Mapping[str, Value]) -> Prediction | None:
        """Return what the preset itself expects of a point, where it plans without the planner."""
        return None

    def implicit_defaults(self, command: str) -> list[ImplicitDefault]:
        """Return the parallel sizes that the framework takes because `command` leaves them out."""
        return []

    def continue_with(self, recorded: Mapping[str, Sequence[Value]]) -> None:
        """Search what the trials of an earlier run chose from, where this release would search something else."""


class Levers(TuningPreset):
    """A preset with settings besides the search space, which are tried on the best point afterwards."""

    def lever_space(self) -> dict[str, Parameter]:
        """Return the parameters of the levers, which a point may have besides those of the search space."""
        return {}

    def levers(self, command: str, params: Mapping[str, Value]) -> Sequence[Lever]:
        """Return the levers that may be tried on a point, besides what `command` itself has on."""
        return ()


class Watched(TuningPreset):
    """A preset that learns from runs: from the user's own command, and from what each trial prints."""

    def baseline_command(self, command: str) -> str:
        """Return the user's own command as it runs first: as it is, but for what makes it print what is measured."""
        return command

    def baseline_files(self) -> dict[str, str]:
        """Return the files that this run needs besides its command, as relative path and text."""
        return {}

    def trial_command(self, command: str) -> str:
        """Return the command of any run as it is launched: as it is, but printing every iteration."""
        return command

    def short_steps(self, params: Mapping[str, Value]) -> ShortSteps | None:
        """Return the steps of fewer micro-batches a run may begin with, where each takes as long; None: whole ones.

        Without parameters it is the user's own command that runs.
        """
        return None

    def read_baseline(self, log: str) -> list[str]:
        """Learn from the log of the user's own command what its text does not say, and return that, one line each.

        It is called once before the search, with nothing where that command was not run; the search space and the
        user's own point are asked for again where something was learnt.
        """
        return []

    def observe(self, trial: Trial) -> None:
        """Learn from a run of a point, so that what was measured overrules what `explain` predicts."""

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a run's own dump of its arguments must say of a point, by the names that they have there."""
        return {}

    def decisive(self) -> tuple[str, ...]:
        """Return the parameters that cannot be without effect on both time and memory."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmingRun:
    """The run that confirms a point, where it does more than the trial of it."""

    meets: str
    """What a short trial may not meet, in a few words, such as "the longest samples"."""
    files: Mapping[str, str]
    """The files of the run, in place of those of the trial."""
    smaller: Params | None = None
    """The point to try where it runs out of memory; None where there is none."""


class Files(TuningPreset):
    """A preset for a framework that is configured by file: trials have their own, and the best one is left behind."""

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the files that a trial needs besides its command, as relative path and text."""
        return {}

    def confirming(self, params: Mapping[str, Value]) -> ConfirmingRun | None:
        """Return how the run that confirms a point differs from the trial of it; None: it repeats the trial."""
        return None

    def in_place(self, params: Mapping[str, Value]) -> InPlace | None:
        """Return how a process that measured another point may measure this one; None: by a start of its own."""
        return None

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return what is left for the best point in the study's folder, as relative path and text."""
        return {}

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str | None:
        """Return the command that trains with what is left in the study's `folder`; None: the trial's own will do."""
        return None


class CompletePreset(Described, Planned, Levers, Watched, Files):
    """A preset with every part, as the tuner uses it."""


def completed(preset: TuningPreset) -> CompletePreset:
    """Return a preset with every part: its own methods, and where it has none those that change nothing."""
    if isinstance(preset, CompletePreset):
        return preset
    # By the same name, which messages give.
    found: CompletePreset = type(type(preset).__name__, (_Completed,), {})(preset)
    return found


def _checked(method: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Return a method of somebody's preset that refuses, in one line, an answer of another kind."""

    @functools.wraps(method)
    def answer(*args: Any, **options: Any) -> Any:
        found = method(*args, **options)
        if not isinstance(found, kind):
            problem = f"{method.__qualname__} must return a {kind.__name__}, but returned {found!r}"
            raise UsageError(problem, hint="correct the preset")
        return found

    return answer


class _Completed(CompletePreset):
    def __init__(self, preset: TuningPreset) -> None:
        from zenith_tune.evaluators.base import TuningEvaluator
        from zenith_tune.strategies.base import TuningStrategy

        self.own = preset
        names = [name for name in dir(CompletePreset) if not name.startswith("_") and hasattr(preset, name)]
        self.__dict__.update({name: getattr(preset, name) for name in names})
        answers = {"get_search_space": dict, "apply_parameters": str, "evaluator": TuningEvaluator}
        answers |= {"get_recommended_strategy": TuningStrategy}
        self.__dict__.update({name: _checked(getattr(preset, name), kind) for name, kind in answers.items()})

    def get_search_space(self) -> dict[str, Parameter]:
        return self.own.get_search_space()

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return self.own.apply_parameters(command, params)
