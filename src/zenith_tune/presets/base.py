"""The contract of a preset: it knows one framework's options, and turns a point into a command."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.levers import Lever
from zenith_tune.registry import Registry
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Parameter, Params, Value
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial import Prediction, Trial
from zenith_tune.units import whole

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable


_SCRIPT = re.compile(r"(?<!\S)[\w./-]{1,200}\.(?:py|sh)(?!\S)")


def recognised_preset(command: str) -> str:
    """Return the name of the first preset that recognises the command, or else of one that a run of it may prove."""
    for name, cls in PresetRegistry.each_loadable():
        if cls.recognises(command):
            return name
    for name, cls in PresetRegistry.each_loadable():
        if cls.may_be_for(command):
            return name
    known = ", ".join(PresetRegistry.names())
    missing = [f", and {name} does not exist here" for name in _SCRIPT.findall(command) if not Path(name).exists()]
    raise UsageError(
        f"no preset recognises the command {mask(command, find_secrets(command))!r}{''.join(missing[:1])}",
        hint=f"choose one by --preset ({known}), or write your own (docs/plugs.md)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplicitDefault:
    """Hold such a size, and the line that says what was meant."""

    name: str
    """The size in short, such as "cp"."""
    size: int
    """What the framework takes."""
    meant: int
    """What a command that says nothing of it means."""
    key: str
    """Where it is said."""
    taken_by: str
    """Whose default it is."""

    @property
    def finding(self) -> str:
        """What is wrong, in one line."""
        return f"your file leaves {self.key} out, which {self.taken_by} takes for {self.size}"

    @property
    def hint(self) -> str:
        """The line to write."""
        return f"set {self.key}: {self.meant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmingRun:
    """Hold what the run that confirms a point does beyond the trial of it."""

    meets: str
    """What a short trial may not meet, in a few words, such as "the longest samples"."""
    files: Mapping[str, str]
    """The files of the run, in place of those of the trial."""
    smaller: Params | None = None
    """The point to try where it runs out of memory; None where there is none."""


DEFAULT = "default"
"""What `search` is unless the user says otherwise."""


def chosen_axes(search: str, known: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the axes that `search` lists, with a plus between them; a name may stand for several.

    >>> sorted(chosen_axes("default+tp", {"default": ("stage", "mbs"), "tp": ("tp",)}))
    ['mbs', 'stage', 'tp']
    """
    names: set[str] = set()
    for name in filter(None, (part.strip() for part in search.split("+"))):
        if name not in known:
            raise UnknownNameError("axis", name, known)
        names.update(known[name])
    if not names:
        raise UsageError("search must name an axis, but is empty", hint=f"give search={DEFAULT}")
    return names


MOST = 2**31


def refuse_sizes(**sizes: int | None) -> None:
    """Refuse a size that no job has; None leaves it to the command."""
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= MOST:
            raise UsageError(f"{name} must be from 1 to {MOST}, but got {value}", hint=f"correct it, e.g. {name}=1")


def refuse_steps(steps: int) -> None:
    """Refuse trials of too few steps to measure, or of more than any needs."""
    if not 3 <= steps <= MOST_STEPS:
        raise UsageError(f"steps must be from 3 to {MOST_STEPS}, but got {steps}", hint="give steps=20")


MOST_STEPS = 10_000
NUMERIC_POINTS = 5
"""How many values of a numeric parameter are points of their own."""
MAX_POINTS = 1_000_000
"""More are not walked through one by one; a preset with so many has rules by which to make fewer."""

TRAIN_STEPS = ("--train-iters", "--train_iters", "--max-steps", "--max_steps")
"""How training programs spell the number of steps."""


class TuningPreset(ABC):
    """Know what to tune in one framework; a preset writes nothing and starts nothing itself.

    The constructor's keyword arguments are what `--args` takes; their annotations give the types.
    """

    @classmethod
    def recognises(cls, command: str) -> bool:
        """Tell whether `command` is one that this preset is made for."""
        return False

    @classmethod
    def arguments_in(cls, command: str) -> dict[str, Any]:
        """Return the arguments of the constructor that `command` itself tells; those of the user win."""
        return {}

    @classmethod
    def may_be_for(cls, command: str) -> bool:
        """Tell whether a run of `command` could show that it is for this preset, where its text does not."""
        return False

    def bind(self, command: str) -> None:  # noqa: B027 - most presets need nothing of it
        """Read what `command` itself says of the job, once and before anything else is asked of the preset."""

    def continue_with(self, recorded: Mapping[str, Sequence[Value]]) -> None:  # noqa: B027 - most have one space
        """Search what the trials of an earlier run chose from, where this release would search something else."""

    @abstractmethod
    def get_search_space(self) -> dict[str, Parameter]:
        """Return what is searched."""

    @abstractmethod
    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the options that `params` stands for."""

    @abstractmethod
    def get_recommended_strategy(self) -> TuningStrategy:
        """Return the strategy used where the user names none."""

    def evaluator(self) -> TuningEvaluator:
        """Return the evaluator used where the user names none."""
        problem = f"{type(self).__name__} reads no value by itself"
        raise UsageError(problem, hint="give --objective REGEX or --evaluator NAME, or define its evaluator()")

    def placeholder_names(self) -> set[str]:
        """Return the names that a command may hold in braces, such as {tp}."""
        return set(self.get_search_space())

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point is not worth a trial in one line, or None if it is."""
        return None

    def observe(self, trial: Trial) -> None:  # noqa: B027 - most presets need nothing of it
        """Learn from a run of a point, so that what was measured overrules what `explain` predicts."""

    def read_baseline(self, log: str) -> list[str]:
        """Learn from the log of the user's own command what its text does not say, and return that, one line each.

        It is called once before the search, with nothing where that command was not run; the search space and the
        user's own point are asked for again where something was learnt.
        """
        return []

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a run's own dump of its arguments must say of a point, by the names that they have there."""
        return {}

    def decisive(self) -> tuple[str, ...]:
        """Return the parameters that cannot be without effect on both time and memory."""
        return ()

    def prune(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a point is not worth a trial."""
        return self.explain(params) is not None

    def layout(self, params: Mapping[str, Value]) -> Layout | None:
        """Return the parallel layout that `params` stands for, where the framework has one."""
        return None

    def planned_layout(self, command: str, params: Mapping[str, Value]) -> Layout | None:
        """Return that layout with all that `command` itself says of it: sharding, sequence parallelism, kernels."""
        return self.layout(params)

    def subject(self, command: str) -> PlanSubject | None:
        """Return what the planner needs to know of `command`: model, cluster and job; None for a preset without plans.

        Raises UsageError with what is missing, and how to give it, where a plan could be made but for that.
        """
        return None

    def predicted(self, params: Mapping[str, Value]) -> Prediction | None:
        """Return what the preset itself expects of a point, where it plans without the planner."""
        return None

    def lever_space(self) -> dict[str, Parameter]:
        """Return the parameters of the levers, which a point may have beside those of the search space."""
        return {}

    def levers(self, command: str, params: Mapping[str, Value]) -> Sequence[Lever]:
        """Return the levers that may be tried on a point, beside what `command` itself has on."""
        return ()

    def tries(self, layout: Layout) -> bool:
        """Tell whether a study that leaves the search to this preset may try a layout."""
        return True

    def own_point(self, command: str) -> Params | None:
        """Return the point that `command` itself stands for, where it is one of the search space."""
        return None

    def train_steps(self, command: str) -> int | None:
        """Return how many steps `command` trains, where it tells."""
        line = ParsedCommand.of(command)
        found = (whole(line.get(option) or "") for option in TRAIN_STEPS)
        return next((steps for steps in found if steps), None)

    def implicit_defaults(self, command: str) -> list[ImplicitDefault]:
        """Return the parallel sizes that the framework takes because `command` leaves them out, and nobody means."""
        return []

    def points(self) -> Iterator[Params]:
        """Yield every point that is worth a trial; numeric parameters by a few values each."""
        space = self.get_search_space()
        axes = [parameter.grid(NUMERIC_POINTS) for parameter in space.values()]
        for values in itertools.islice(itertools.product(*axes), MAX_POINTS):
            point = dict(zip(space, values, strict=True))
            if not self.prune(point):
                yield point

    def tables(self, command: str) -> Iterator[tuple[LayoutBatch, PointTable]] | None:
        """Yield the same points many at a time, with the layouts that are planned of them; None: one by one."""
        return None

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the files that a trial needs beside its command, as relative path and text."""
        return {}

    def confirming(self, params: Mapping[str, Value]) -> ConfirmingRun | None:
        """Return how the run that confirms a point differs from the trial of it; None: it repeats the trial."""
        return None

    def baseline_command(self, command: str) -> str:
        """Return the user's own command as it runs first: as it is, but for what makes it print what is measured."""
        return command

    def trial_command(self, command: str) -> str:
        """Return the command of any run as it is launched: as it is, but printing every iteration."""
        return command

    def baseline_files(self) -> dict[str, str]:
        """Return the files that this run needs beside its command, as relative path and text."""
        return {}

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return what is left for the best point in the study's folder, as relative path and text."""
        return {}

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str | None:
        """Return the command that trains with what is left in the study's `folder`; None: the trial's own will do."""
        return None

    def resources(self, command: str) -> Resources:
        """Return what one run of `command` needs: nodes, and GPUs of each."""
        from zenith_tune.presets.launched_gpus import launched_resources

        return launched_resources(command)

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words, for a table's cell."""
        return " ".join(f"{name}={value}" for name, value in params.items())

    def notes(self, command: str) -> list[str]:
        """Return what the user of `command` should know before the first trial, one line each."""
        return []


PresetRegistry: Registry[TuningPreset] = Registry(
    "preset",
    "zenith_tune.presets",
    {
        "accelerate": "zenith_tune.presets.accelerate.preset",
        "axolotl": "zenith_tune.presets.axolotl.preset",
        "deepspeed": "zenith_tune.presets.deepspeed.preset",
        "demo": "zenith_tune.presets.demo",
        "llamafactory": "zenith_tune.presets.llamafactory.preset",
        "megatron": "zenith_tune.presets.megatron.documented.preset",
        "megatron-bridge": "zenith_tune.presets.megatron_bridge.preset",
        "megatron-lm": "zenith_tune.presets.megatron.preset",
        "mimo": "zenith_tune.presets.mimo.preset",
        "space": "zenith_tune.presets.space",
        "torchtitan": "zenith_tune.presets.torchtitan.preset",
        "trainer": "zenith_tune.presets.trainer.preset",
    },
    contract=TuningPreset,
)
