"""A whole study in a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Concatenate, ParamSpec, TypeVar

from rich.console import Console

from zenith_tune.api.study_result import StudyResult
from zenith_tune.errors import UnknownNameError
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.terminal.terminal import TerminalReporter
from zenith_tune.shell import ParsedCommand
from zenith_tune.tuner import PresetTuner
from zenith_tune.tuning.options import TuneOptions

Given = ParamSpec("Given")
Found = TypeVar("Found")
Command = str | Sequence[str]


def _takes(
    options: Callable[Given, TuneOptions],
) -> Callable[[Callable[..., Found]], Callable[Concatenate[Command, Given], Found]]:
    """Give a function the arguments of the options after its command: to readers, editors and type checkers."""

    def decorate(function: Callable[..., Found]) -> Callable[Concatenate[Command, Given], Found]:
        own = inspect.signature(function)
        named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*named, *inspect.signature(options).parameters.values()]
        )
        return function

    return decorate


@_takes(TuneOptions)
def tune(command: Command, **options: Any) -> StudyResult:
    """Run a training command again and again with other options, and return the study, as `zenithtune optimize` does.

    The options are those of the command line, by the names in `TuneOptions`. Ctrl-C, or a notebook's interrupt, stops
    the study cleanly: `resume=True` continues it, `StudyResult.load` shows it.

    result = tune("bash train.sh", args={"cluster": "h100x8"}, n_trials=20)
    print(result.gain, result.command)
    """
    known = [field.name for field in fields(TuneOptions)]
    for name in options:
        if name not in known:
            raise UnknownNameError("argument of tune", name, known)
    if options.get("listener") is None:
        # Plain lines, as a program prints them: the live display of a notebook needs widgets.
        options["listener"] = lambda: TerminalReporter(Console(highlight=False, force_jupyter=False))
    tuner = PresetTuner(command if isinstance(command, str) else ParsedCommand.from_argv(command).text, **options)
    tuner.optimize()
    place = tuner.config.place
    return StudyResult(StudyReader(place.database_url, place.study_name))
