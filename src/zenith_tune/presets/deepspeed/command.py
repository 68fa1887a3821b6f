"""A command that trains with DeepSpeed: where it names its configuration, and the same command for one trial."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import CONFIG_OPTIONS, find_config
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.shell.rank_launcher import DEEPSPEED, last_option
from zenith_tune.study.parameters import Value

PRESET = "preset deepspeed"
PLACEHOLDER = "{ds_config}"
FILE_NAME = "ds_config.json"
TRIAL_PATH = f"{{trial_folder}}/{FILE_NAME}"
"""Where a trial's own configuration lies; the tuner fills the folder in."""
_STAND_IN = "ZENITHTUNE_DS_CONFIG"
AUTOTUNING, TUNINGS = "--autotuning", ("tune", "run")
"""The launcher's option for DeepSpeed's own tuner, and what it takes."""


def refuse_two_configs(command: str) -> None:
    """Refuse a command that names a JSON by both options: which of them counts is the script's secret."""
    line = ParsedCommand.of(command)
    named = {option: path for option in CONFIG_OPTIONS if (path := line.get(option)) and path.endswith(".json")}
    if len(named) > 1:
        both = " and ".join(f"{option} {path[:80]}" for option, path in named.items())
        raise UsageError(
            f"the command must name one DeepSpeed configuration, but has {both}", hint="take one of them out"
        )


def recognises(command: str) -> bool:
    """Return whether a command visibly trains with DeepSpeed: it names a JSON file, or starts the launcher."""
    named = find_config(command)
    if named is not None:
        return named.is_json or PLACEHOLDER in command or named.path == TRIAL_PATH
    launcher = ParsedCommand.of(command).launcher
    return PLACEHOLDER in command or (launcher is not None and launcher.kind == DEEPSPEED)


def asked_tuning(command: str) -> str:
    """Return what a command asks DeepSpeed's launcher for by --autotuning, "tune" or "run"; nothing where it trains.

    >>> asked_tuning("deepspeed --autotuning run --num_gpus 8 train.py --deepspeed_config ds.json")
    'run'
    """
    asked = last_option(ParsedCommand.of(command).front, AUTOTUNING)
    if asked is None:
        return ""
    if asked not in TUNINGS:
        raise UsageError(f"--autotuning must be {' or '.join(TUNINGS)}, but got {asked[:40]!r}: correct it")
    if last_option(ParsedCommand.of(without_tuning(command)).front, AUTOTUNING) is not None:
        problem = "the command must train, but it asks DeepSpeed's launcher to tune by --autotuning"
        raise UsageError(problem, hint="take that option out; what its section in the JSON says is heeded")
    return asked


def without_tuning(command: str) -> str:
    """Return the command that trains: two tuners inside one another measure nothing."""
    launcher = ParsedCommand.of(command).launcher
    is_asked = launcher is not None and launcher.option(AUTOTUNING) is not None
    return launcher.with_options({}, without=(AUTOTUNING,)) if launcher and is_asked else command


def written_command(command: str, options: Mapping[str, str], values: Mapping[str, Value]) -> str:
    """Return the command with the trial's own configuration, and with these options unless placeholders carry them."""
    text = fill_or_set(without_tuning(command), options, values, keeps_names=True)
    if PLACEHOLDER in text:
        return text.replace(PLACEHOLDER, TRIAL_PATH)
    named = find_config(text)
    if named is None:
        raise UsageError(
            f"{PRESET} finds no option in the command that names the JSON", hint=f"write {PLACEHOLDER} for it"
        )
    # Without quotes around it, because the folder that is filled in brings those that it needs.
    line = _unquoted(ParsedCommand.of(text), named.option)
    return line.set({named.option: _STAND_IN}, keeps_names=True).text.replace(_STAND_IN, TRIAL_PATH)


def _unquoted(line: ParsedCommand, option: str) -> ParsedCommand:
    """Return the command without an option whose value is in quotes, so that it is written anew."""
    plain = line.set({option: _STAND_IN}).text
    at = plain.find(_STAND_IN)
    return line.remove(option) if plain[at - 1 : at] in ("'", '"') else line
