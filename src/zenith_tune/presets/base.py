"""The contract of a preset: it knows one framework's options, and turns a point into a command."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from zenith_tune.errors import CommandError, UnknownNameError, UsageError
from zenith_tune.presets.recognition import FRAMEWORKS, SIBLINGS, command_module, may_be, recognised_as
from zenith_tune.registry import Registry

if TYPE_CHECKING:
    from zenith_tune.evaluators.base import TuningEvaluator
    from zenith_tune.strategies.base import TuningStrategy
    from zenith_tune.study.parameters import Parameter, Value

_SCRIPT = re.compile(r"(?<!\S)[\w./-]{1,200}\.(?:py|sh)(?!\S)")


def recognised_preset(command: str) -> str:
    """Return the name of the first preset that recognises the command, or else of one that a run of it may prove."""
    # The particular before the general: x-y before x.
    for name in sorted(PresetRegistry.names(), key=lambda name: f"{name}~"):
        if name not in NEVER_RECOGNISED and _is_for(name, command):
            return name
    for name, (_, programs) in SIBLINGS.items():
        if any(program in command for program in programs):
            PresetRegistry.get(name)  # says what to install
    for name in FRAMEWORKS:
        if may_be(name, command):
            return name
    from zenith_tune.shell.scripts.opened import training_line
    from zenith_tune.shell.secrets import find_secrets, mask

    known = ", ".join(PresetRegistry.names())
    missing = [f", and {name} does not exist here" for name in _SCRIPT.findall(command) if not Path(name).exists()]
    shown = mask(training_line(command), find_secrets(command))
    raise UsageError(
        f"no preset recognises the command {shown!r}{''.join(missing[:1])}",
        hint=f"tune a program of your own by --space NAME=VALUES, or choose a framework by --preset ({known})",
    )


def _is_for(name: str, command: str) -> bool:
    if command_module(name) is not None:
        return recognised_as(name, command)
    try:
        return PresetRegistry.get(name).recognises(command)
    except UnknownNameError:  # a plugin that cannot be loaded, of which the registry has warned
        return False


def recognised(command: str) -> tuple[str, str]:
    """Return the preset that recognises a command, and the command: its script opened where nothing else shows it."""
    from zenith_tune.shell.scripts.opened import opened_script

    try:
        return recognised_preset(command), command
    except UsageError as error:
        with suppress(CommandError):
            if (opened := opened_script(command)) != command:
                return recognised_preset(opened), opened
        raise error from None


class TuningPreset(ABC):
    """What to tune in one framework; a preset writes nothing and starts nothing itself.

    The constructor's keyword arguments are what `--args` takes; their annotations give the types. What only some
    presets have is in the optional parts of `zenith_tune.presets.parts`.
    """

    most_grid_points: ClassVar[int] = 64
    """The most points that are tried one by one, where the user names no strategy."""

    @classmethod
    def recognises(cls, command: str) -> bool:
        """Return whether `command` is one that this preset is made for."""
        return recognised_as(PresetRegistry.name_of(cls), command)

    def bind(self, command: str) -> None:  # noqa: B027 - a preset may need nothing of it
        """Read what `command` itself says of the job, once and before anything else is asked of the preset."""

    @abstractmethod
    def get_search_space(self) -> dict[str, Parameter]:
        """Return what is searched."""

    @abstractmethod
    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the options that `params` stands for."""

    def evaluator(self) -> TuningEvaluator:
        """Return the evaluator used where the user names none."""
        problem = f"{type(self).__name__} reads no value by itself"
        raise UsageError(problem, hint="give --objective REGEX or --evaluator NAME, or define its evaluator()")

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point is not worth a trial in one line, or None if it is."""
        return None

    def prune(self, params: Mapping[str, Value]) -> bool:
        """Return whether a point is not worth a trial."""
        return self.explain(params) is not None

    def get_recommended_strategy(self) -> TuningStrategy:
        """Return the strategy used where the user names none: every point where they are few, else samples of them."""
        from zenith_tune.strategies.grid import GridStrategy
        from zenith_tune.strategies.optuna import OptunaStrategy
        from zenith_tune.study.parameters import FloatParameter

        axes, most = self.get_search_space().values(), self.most_grid_points
        is_continuous = any(isinstance(axis, FloatParameter) for axis in axes)
        num_points = math.prod(len(axis.grid(most + 1)) for axis in axes)
        return OptunaStrategy() if is_continuous or num_points > most else GridStrategy(grid_points=most)


NEVER_RECOGNISED = ("demo", "space")
"""Built-in presets that a user names, or asks for by --space."""
PresetRegistry: Registry[TuningPreset] = Registry(
    "preset",
    "zenith_tune.presets",
    {
        **{name: f"zenith_tune.presets.{folder}.preset" for name, folder in FRAMEWORKS.items()},
        **{name: f"zenith_tune.presets.{name}" for name in NEVER_RECOGNISED},
    },
    contract=TuningPreset,
    siblings={name: extra for name, (extra, _) in SIBLINGS.items()},
)
