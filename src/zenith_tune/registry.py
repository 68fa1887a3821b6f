"""One way in for everything that can be plugged: built-ins, decorated classes and package entry points."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from zenith_tune.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from zenith_tune.evaluators.base import TuningEvaluator
    from zenith_tune.presets.base import TuningPreset
    from zenith_tune.runners.base import Runner
    from zenith_tune.strategies.base import TuningStrategy

T = TypeVar("T")


class PluginWarning(UserWarning):
    """Name an installed plugin that cannot be loaded and is skipped."""


class Registry(Generic[T]):
    """Map names to classes; a class is imported when its name is asked for, not before.

    >>> @StrategyRegistry.register("mine")
    ... class MyStrategy: ...
    >>> StrategyRegistry.get("mine") is MyStrategy
    True
    """

    def __init__(self, kind: str, entry_point_group: str, built_in: dict[str, str]) -> None:
        self.kind = kind
        self.entry_point_group = entry_point_group
        self._built_in = built_in
        self._classes: dict[str, type[T]] = {}
        self._broken: set[str] = set()

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class under `name`."""

        def decorate(cls: type[T]) -> type[T]:
            known = self._classes.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise UsageError(f"{self.kind} {name!r} is registered by {known.__module__}: choose another name")
            self._classes[name] = cls
            return cls

        return decorate

    def get(self, name: str) -> type[T]:
        """Return the class registered under `name`, importing it if need be."""
        if name not in self._classes and name in self._built_in:
            importlib.import_module(self._built_in[name])
        if name not in self._classes:
            self._load_plugin(name)
        if name not in self._classes:
            raise UnknownNameError(self.kind, name, self.names())
        return self._classes[name]

    def names(self) -> list[str]:
        """Return every known name, built-ins and plugins alike, without importing any."""
        names = {*self._built_in, *self._classes, *(point.name for point in self._entry_points())}
        return sorted(names - self._broken)

    def name_of(self, cls: type[T]) -> str:
        """Return the name that a class is registered under, or the class's own."""
        return next((name for name, known in self._classes.items() if known is cls), cls.__name__)

    def each_loadable(self) -> Iterator[tuple[str, type[T]]]:
        """Yield every class that can be imported, with its name, the particular before the general: x-y before x.

        Each is imported when it is its turn. A plugin that cannot be imported is named in a warning and skipped.
        """
        for name in sorted(self.names(), key=lambda name: f"{name}~"):
            try:
                yield name, self.get(name)
            except UnknownNameError:
                continue

    def _entry_points(self) -> EntryPoints:
        from importlib import metadata  # not at the top: it costs more than the rest of this module

        return metadata.entry_points(group=self.entry_point_group)

    def _load_plugin(self, name: str) -> None:
        for point in self._entry_points():
            if point.name != name:
                continue
            try:
                self._classes[name] = point.load()
            except Exception as error:  # a stranger's module may raise anything at import
                self._broken.add(name)
                package = point.dist.name if point.dist else point.value
                reason = f"{type(error).__name__}: {error}"
                message = f"{self.kind} plugin {name!r} of package {package!r} cannot be loaded, skipped: {reason}"
                warnings.warn(PluginWarning(message), stacklevel=3)


PresetRegistry: Registry[TuningPreset] = Registry(
    "preset",
    "zenith_tune.presets",
    {
        "accelerate": "zenith_tune.presets.accelerate.preset",
        "deepspeed": "zenith_tune.presets.deepspeed.preset",
        "demo": "zenith_tune.presets.demo",
        "megatron": "zenith_tune.presets.megatron.preset",
        "megatron-lm": "zenith_tune.presets.megatron_lm.preset",
        "mimo": "zenith_tune.presets.mimo.preset",
    },
)
StrategyRegistry: Registry[TuningStrategy] = Registry(
    "strategy",
    "zenith_tune.strategies",
    {
        "grid": "zenith_tune.strategies.grid",
        "random": "zenith_tune.strategies.random",
        "optuna": "zenith_tune.strategies.optuna",
        "guided": "zenith_tune.strategies.guided.strategy",
        "megatron-heuristic": "zenith_tune.strategies.megatron_heuristic",
        "mimo-ranked": "zenith_tune.presets.mimo.strategy",
        "zero-progressive": "zenith_tune.strategies.zero_progressive.strategy",
    },
)
EvaluatorRegistry: Registry[TuningEvaluator] = Registry(
    "evaluator",
    "zenith_tune.evaluators",
    {
        "duration": "zenith_tune.evaluators.duration",
        "regex": "zenith_tune.evaluators.regex",
        "megatron": "zenith_tune.presets.megatron.evaluator",
        "accelerate": "zenith_tune.presets.accelerate.evaluator",
        "deepspeed": "zenith_tune.presets.deepspeed.evaluator",
    },
)
RunnerRegistry: Registry[Runner] = Registry(
    "runner",
    "zenith_tune.runners",
    {
        "hostfile": "zenith_tune.runners.hostfile.runner",
        "local": "zenith_tune.runners.local.runner",
        "ray": "zenith_tune.runners.ray.runner",
        "slurm": "zenith_tune.runners.slurm.runner",
    },
)
