"""From a command and its options to a study: the preset, strategy, evaluator, runner and place that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from zenith_tune.describe.topology import read_topology
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator, choose_evaluator, is_objective_name
from zenith_tune.evaluators.json_lines import PREFIX
from zenith_tune.evaluators.regex import KNOWN, usual_direction, usual_selector
from zenith_tune.presets.base import PresetRegistry, TuningPreset, recognised_preset
from zenith_tune.presets.parts import CompletePreset, completed
from zenith_tune.presets.recognition import arguments_in
from zenith_tune.presets.space import SEPARATOR
from zenith_tune.record.reader import recorded_choices, recorded_evaluator
from zenith_tune.registry import construct, parse_pairs, typed
from zenith_tune.runners.base import Runner, named_runner
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.opened import opened_script
from zenith_tune.shell.secrets import find_secrets, secrets_of_environment
from zenith_tune.strategies.base import StrategyRegistry, TuningStrategy
from zenith_tune.study.parameters import Direction
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.options import OF_THE_JOB, Axes, Pairs, TuneOptions, flag
from zenith_tune.tuning.place import StudyPlace, check_text

EXAMPLES = {
    "kubernetes": "manifest=trainjob.yaml,queue=gpus",
    "runner_args": "grace_s=10",
    "slurm": "partition=gpu,time=00:20:00",
    "strategy_args": "seed=1",
}


def resolve(command: str, options: TuneOptions, words: tuple[str, ...] | None = None) -> StudyConfig:
    """Return the study of a command; `words` are the options of the command line that made it, to resume it with.

    A script that hands no options on, or has some that trials must change, is opened: the study is of its text.
    """
    try:
        opened = opened_script(command)
    except CommandError:
        opened = command
    if opened == command:
        return _resolved(command, options, words)
    takes_options = not ParsedCommand.of(command).warnings()
    first, second = (command, opened) if takes_options else (opened, command)
    refused: dict[str, UsageError] = {}
    for each in (first, second):
        try:
            return _resolved(each, options, words)
        except UsageError as error:
            refused[each] = error
    raise refused[opened]


def _resolved(command: str, options: TuneOptions, words: tuple[str, ...] | None) -> StudyConfig:
    check_text(command, "the training command")
    args = _tune_args(options)
    preset_name, preset_args, preset = _make_preset(options, command, args)
    preset.bind(command)
    strategy_name, strategy = make_strategy(options.strategy, _pairs(options, "strategy_args"), preset, args)
    needed = preset.resources(command).for_gpus(preset_args.get("n_gpus"))
    # A framework prints its configuration, and whatever that holds, into the log.
    texts = [command, *preset.baseline_files().values()]
    place = StudyPlace.find(options, stem=preset_name.rpartition(":")[2])
    config = StudyConfig(
        line=ParsedCommand.of(command),
        preset_name=preset_name,
        preset=preset,
        preset_args=preset_args,
        strategy_name=strategy_name,
        strategy=strategy,
        evaluator=_evaluator(_as_begun(options, place), preset, args),
        place=place,
        resources=needed.given(nodes=options.nodes_per_trial, gpus_per_node=options.gpus_per_trial),
        secrets=tuple(dict.fromkeys([*secrets_of_environment(os.environ), *chain(*map(find_secrets, texts))])),
        options=options,
        words=words,
    )
    if options.resume:
        preset.continue_with(recorded_choices(place.database_url, place.study_name))
    config.check_command()
    return config


def resolve_runner(options: TuneOptions) -> Runner | tuple[str, dict[str, str]]:
    """Return the runner that is given, or the name and the arguments of the one to make."""
    if isinstance(options.runner, Runner):
        return options.runner
    short = {"runner": options.runner, "ray_address": options.ray_address, "hostfile": options.hostfile}
    texts = {name: None if value is None else str(value) for name, value in short.items()}
    engines = {name: _pairs(options, name) for name in ("slurm", "kubernetes")}
    return named_runner(texts, _pairs(options, "runner_args"), **engines)


def make_strategy(
    strategy: str | TuningStrategy | None,
    args: Mapping[str, Any],
    preset: TuningPreset,
    defaults: Mapping[str, Any],
) -> tuple[str, TuningStrategy]:
    """Return the name of a strategy and the strategy: the one that is given or named, else the preset's choice."""
    if isinstance(strategy, str):
        cls = StrategyRegistry.get(strategy)
        return strategy, construct(cls, args, f"strategy {strategy}", defaults=defaults)
    if args:
        raise UsageError("--strategy-args belong to a strategy", hint="name it by --strategy")
    chosen = strategy or preset.get_recommended_strategy()
    return StrategyRegistry.name_of(type(chosen)), chosen


def _make_preset(
    options: TuneOptions, command: str, args: Mapping[str, Any]
) -> tuple[str, dict[str, Any], CompletePreset]:
    preset = options.preset
    if options.space:
        if preset not in (None, "space"):
            hint = "leave --preset out, or take --args search= of that preset"
            raise UsageError("--space is a preset of its own", hint=hint)
        preset = "space"
    if isinstance(preset, TuningPreset):
        return type(preset).__name__, {}, completed(preset)
    name = preset or recognised_preset(command)
    cls = PresetRegistry.get(name)
    # Typed, so that a resumed study may write n_gpus=08 for 8.
    known = typed(cls, {**arguments_in(name, command), **args}, f"preset {name}")
    return name, known, completed(construct(cls, known, f"preset {name}"))


def _as_begun(options: TuneOptions, place: StudyPlace) -> TuneOptions:
    """Return what counts of a log, and which way is better, as the study began, where the options leave it open."""
    if not options.resume or options.objective is None or is_objective_name(options.objective):
        return options
    *_, selector, direction = ["", "", *recorded_evaluator(place.database_url, place.study_name).split(", ")]
    if selector not in KNOWN:
        return options
    way = direction == Direction.MAXIMIZE if options.maximize is None else options.maximize
    return replace(options, select=options.select or selector, maximize=way)


def _evaluator(options: TuneOptions, preset: TuningPreset, args: Mapping[str, Any]) -> TuningEvaluator:
    """Return the evaluator that is given or named, that of a pattern, or else the preset's own."""
    evaluator, given, objective = options.evaluator, _pairs(options, "evaluator_args"), options.objective
    of_pattern: dict[str, Any] = {} if options.select is None else {"selector": options.select}
    if options.maximize is not None:
        of_pattern["direction"] = Direction.MAXIMIZE if options.maximize else Direction.MINIMIZE
    if objective is None or is_objective_name(objective):
        if of_pattern:
            problem = "--maximize, --minimize and --select go with --objective REGEX"
            got = ": give one" if objective is None else f", but {objective!r} has its own direction"
            raise UsageError(problem + got)
        return choose_evaluator(evaluator, given, objective, own=preset.evaluator, defaults=args)
    if evaluator not in (None, "regex", "json") or given:
        hint = "leave --evaluator and --evaluator-args out"
        raise UsageError("--objective REGEX is an evaluator of its own", hint=hint)
    if objective.startswith(PREFIX):
        name, of_pattern = "json", {"key": objective.removeprefix(PREFIX), **of_pattern}
    else:
        usual = {"selector": usual_selector(objective), "direction": usual_direction(objective)}
        name, of_pattern = "regex", {"pattern": objective, **usual, **of_pattern}
    return choose_evaluator(name, of_pattern, None, own=preset.evaluator, defaults=args)


def _tune_args(options: TuneOptions) -> dict[str, Any]:
    """Return the preset's arguments, with those that have an option of their own."""
    args = _pairs(options, "args")
    if options.space:
        args["space"] = SEPARATOR.join(_axes(options.space))
    if allowed := [options.allow] if isinstance(options.allow, str) else options.allow:
        args["allow"] = "+".join([*filter(None, [args.get("allow")]), *allowed])
    if options.topology is not None:
        read_topology(Path(options.topology))  # a mistake is reported before anything runs
    for name, key in OF_THE_JOB.items():
        value = getattr(options, name)
        if value is None:
            continue
        if key in args:
            raise UsageError(f"{flag(name)} and --args {key}= say the same", hint="give one of them")
        args[key] = str(value)
    return args


def _pairs(options: TuneOptions, name: str) -> dict[str, Any]:
    given: Pairs = getattr(options, name) or {}
    if isinstance(given, str):
        return {**parse_pairs(given, flag(name), EXAMPLES.get(name, "n_gpus=8,gbs=16"))}
    return dict(given)


def _axes(space: Axes) -> list[str]:
    """Return axes as the command line writes them.

    >>> _axes({"batch-size": [4, 8], "lr": "log:1e-5..1e-3"})
    ['batch-size=4,8', 'lr=log:1e-5..1e-3']
    """
    if isinstance(space, str):
        return [space]
    if not isinstance(space, Mapping):
        return list(space)
    return [
        f"{name}={values if isinstance(values, str) else ','.join(map(str, values))}" for name, values in space.items()
    ]
