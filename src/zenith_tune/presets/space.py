"""Tuning a program of one's own without writing a preset: `--space bs=4,8,16 --space lr=log:1e-5..1e-3`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.presets.shared.config_file import ConfigFile, config_files
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set, placeholder_names
from zenith_tune.study.parameters import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    Params,
    Value,
)

SEPARATOR = ";"
"""Between the axes of one text."""
_NAME = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)
_RANGE = re.compile(r"(log:)?([^,]+?)\.\.([^,]+)")
EXAMPLE = "write e.g. --space bs=4,8,16 or --space lr=log:1e-5..1e-3"
OBJECTIVE = "give --objective 'PATTERN WITH ONE (GROUP)', --objective json:NAME or --evaluator duration"


def parse_axis(text: str) -> tuple[str, Parameter]:
    """Return the name and the values of one axis: a list, a range, or a range by ratio.

    >>> parse_axis("bs=4,8,16"), parse_axis("lr=log:1e-5..1e-3")[1]
    (('bs', CategoricalParameter(choices=(4, 8, 16))), FloatParameter(low=1e-05, high=0.001, log=True))
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or not _NAME.fullmatch(name):
        raise UsageError(f"--space takes NAME=VALUES, but got {text!r}", hint=EXAMPLE)
    try:
        return name, _range(values) or CategoricalParameter([_read(value.strip()) for value in values.split(",")])
    except ValueError as error:
        raise UsageError(f"--space {name}: {error}", hint=EXAMPLE) from error


def _range(values: str) -> Parameter | None:
    if (match := _RANGE.fullmatch(values)) is None:
        return None
    log, low, high = match[1], _read(match[2]), _read(match[3])
    if isinstance(low, str) or isinstance(high, str):
        raise ValueError(f"a range goes from number to number, but got {values!r}")
    if log or isinstance(low, float) or isinstance(high, float):
        return FloatParameter(float(low), float(high), log=bool(log))
    return IntParameter(low, high)


def _read(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if not math.isfinite(number):
            raise ValueError(f"{text} is no finite number")
        return number
    if not text:
        raise ValueError("a value is empty")
    return text


_BATCH = re.compile(r"batch(?:_size)?$|(?:^|[._])(?:m|g)?bs$|accum", re.IGNORECASE)
_NO_BATCH = re.compile(r"eval|valid|test|infer", re.IGNORECASE)


@PresetRegistry.register("space")
class SpacePreset(CompletePreset):
    """Tune what `--space` lists: a value fills its placeholder, such as {bs}, or else sets the option --bs.

    Where the command has no such option, it may have an argument bs=8, as Hydra reads them, or name a YAML or JSON file
    with that key, of which a trial has a copy; model.layers is a key inside another. Where nothing says what to read of
    a Python program, a hook measures the steps of its optimizer.
    """

    def __init__(self, *, space: str) -> None:
        if not isinstance(space, str):
            raise UsageError(f"space must be a text, but got {space!r}", hint="write e.g. space='bs=4,8,16'")
        axes = [parse_axis(part) for part in space.split(SEPARATOR)]
        self._options = {name.replace("-", "_"): f"--{name}" for name, _ in axes}
        self._space = {name.replace("-", "_"): parameter for name, parameter in axes}
        if len(self._space) < len(axes):
            raise UsageError(f"--space names an axis twice in {space!r}", hint="give each once")
        self._command, self._text = "", " ".join(part.strip() for part in space.split(SEPARATOR))
        self._hook: dict[str, str] = {}
        """The files of a trial's hook, where steps are measured."""
        self._overrides: list[str] = []
        """The axes that are arguments KEY=VALUE."""
        self._in_files: dict[str, ConfigFile] = {}
        """The axes that are keys of a file."""

    def describe_job(self, command: str) -> str:
        return f"--space {self._text}"

    def bind(self, command: str) -> None:
        self._command, line = command, ParsedCommand.of(command)
        filled, files = placeholder_names(command, self._options), config_files(command)
        for name, option in self._options.items():
            key = option[2:]
            if name in filled or line.has(option):
                continue
            file = next((file for file in files if file.value(key) is not None), None)
            if key in line.overrides or (file is None and "." in key and line.overrides):
                self._overrides.append(name)
            elif file is not None:
                self._in_files[name] = file

    def get_search_space(self) -> dict[str, Parameter]:
        return dict(self._space)

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return self.baseline_command(self._filled(command, params))

    def baseline_command(self, command: str) -> str:
        """Return the command with the hook, where steps are measured."""
        from zenith_tune.presets.shared.trial_hook import watched

        return watched(command) if self._hook else command

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str | None:
        return self._filled(command, params, str(folder)) if self._hook or self._in_files else None

    def _filled(self, command: str, params: Mapping[str, Value], folder: str = "{trial_folder}") -> str:
        elsewhere = {*self._overrides, *self._in_files}
        options = {name: option for name, option in self._options.items() if name not in elsewhere}
        line = ParsedCommand.of(fill_or_set(command, options, params, keeps_names=True))
        line = line.override({self._options[name][2:]: params[name] for name in self._overrides if name in params})
        for file in {file.path: file for file in self._in_files.values()}.values():
            line = line.with_argument(file.path, f"{folder}/{file.name}")
        return line.text

    def _texts(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the user's files with a point's values."""
        texts = {}
        for file in {file.path: file for file in self._in_files.values()}.values():
            names = [name for name, each in self._in_files.items() if each is file and name in params]
            texts[file.name] = file.with_values({self._options[name][2:]: params[name] for name in names})
        return texts

    def own_point(self, command: str) -> Params | None:
        point = self._own_values(command)
        is_whole = point.keys() == self._space.keys()
        return point if is_whole and all(self._space[name].contains(point[name]) for name in point) else None

    def _own_values(self, command: str) -> dict[str, Value]:
        line = ParsedCommand.of(command)
        own = {name: line.get(option) for name, option in self._options.items()}
        own |= {name: line.overrides.get(self._options[name][2:]) for name in self._overrides}
        own |= {name: str(file.value(self._options[name][2:])) for name, file in self._in_files.items()}
        return {name: _read(text) for name, text in own.items() if text}

    def evaluator(self) -> TuningEvaluator:
        # Not at the top: every command loads this module for its separator.
        from zenith_tune.evaluators.hooked_speed import OptimizerStepEvaluator
        from zenith_tune.hooks.injection import hook_files
        from zenith_tune.presets.shared.trial_hook import starts_python

        if not self._command or not starts_python(self._command):
            raise UsageError("--space needs to know what to read from the program's output", hint=OBJECTIVE)
        self._hook = hook_files({"optimizer": {}})
        if not (batches := self._batches()):
            return OptimizerStepEvaluator(OBJECTIVE)
        own = self._own_values(self._command)
        placed = placeholder_names(self._command, self._options)
        if missing := [self._options[name] for name in batches if name not in own and name not in placed]:
            problem = f"trials of other batches are compared by samples, but your command does not give {missing[0]}"
            raise UsageError(problem, hint=f"write its value into the command, or {OBJECTIVE}")
        return OptimizerStepEvaluator(
            OBJECTIVE, lambda params: math.prod(int({**own, **params}[name]) for name in batches)
        )

    def _batches(self) -> list[str]:
        """Return the axes that a step's number of samples is the product of."""
        found = [name for name in self._space if _BATCH.search(name) and not _NO_BATCH.search(name)]
        return [name for name in found if "global" in name or name == "gbs"] or found

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return {**self._hook, **self._texts(params)}

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return self._texts(params)

    def baseline_files(self) -> dict[str, str]:
        return self._hook

    def notes(self, command: str) -> list[str]:
        if not self._hook or self._batches():
            return []
        return [
            "trials are compared by the time of an optimizer's step, by a hook on PYTHONPATH: where a value changes how"
            f" much a step trains, {OBJECTIVE}"
        ]
