"""A command that trains with torchtitan: how it is known, what it sets, and how other settings are written into it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import flat
from zenith_tune.presets.torchtitan.dialect import AC_MODE, Dialect, read_text
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import Splice, apply_splices
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs
from zenith_tune.shell.target import splices_through
from zenith_tune.study.parameters import Value

PRESET = "preset torchtitan"
FILE_OPTION = "job.config_file"
_SUBCOMMAND = re.compile(r"activation[-_]checkpoint:([a-z-]+)")
_TRIED = "training.steps"
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")

Settings = dict[str, Any]
"""By section and key, such as training.seq_len."""


def recognises(command: str) -> bool:
    """Return whether a command, or a shell script that it starts, runs torchtitan."""
    return titan_run(command) is not None


def titan_run(command: str) -> ProgramRun | None:
    """Return the run of torchtitan that a command, or a script that it starts, comes down to."""
    runs = find_runs(command, _is_titan).runs
    return runs[-1] if runs else None


def takes_options(command: str, run: ProgramRun) -> bool:
    """Return whether an option that is added to a command reaches torchtitan, which a script may not pass on."""
    if not run.script or run.added_at is not None:
        return True
    found = titan_run(ParsedCommand.of(command).set({f"--{_TRIED}": 1}, keeps_names=True).text)
    return found is not None and _TRIED in option_settings(found.arguments)


def _is_titan(words: Sequence[str], at: int) -> bool:
    """Return whether a word is the training program: torchtitan's own, or one that takes its way to name a job."""
    word = words[at]
    if word.endswith("torchtitan/train.py"):
        return True
    if at == 0 or words[at - 1] != "-m":
        return False
    named = {name for each in words[at + 1 :] if (name := _name(each.partition("=")[0]))}
    # A launcher is a module as well, with the training program behind it.
    return word == "torchtitan.train" or (FILE_OPTION in named and "-m" not in words[at + 1 :])


def _name(word: str) -> str | None:
    """Return an option as its setting is called."""
    return word[2:].replace("-", "_") if word.startswith("--") and len(word) > 2 else None


def option_settings(arguments: Sequence[str]) -> Settings:
    """Return what options set."""
    found: Settings = {}
    for at, word in enumerate(arguments):
        if match := _SUBCOMMAND.fullmatch(word):
            found[AC_MODE] = match[1].replace("-", "_")
        said, equals, value = word.partition("=")
        name = _name(said)
        if name is None:
            continue
        following = arguments[at + 1] if at + 1 < len(arguments) else "--"
        if equals:
            found[name] = _value(value)
        elif not following.startswith("--") and not _SUBCOMMAND.fullmatch(following):
            found[name] = _value(following)
        else:
            section, _, key = name.rpartition(".")
            found[f"{section}.{key.removeprefix('no_')}" if section else key] = not key.startswith("no_")
    return found


def _value(text: str) -> Any:
    if _NUMBER.fullmatch(text):
        return int(text)
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def file_settings(run: ProgramRun, name: str) -> Settings:
    """Return what the TOML of a job sets, or raise UsageError where it cannot be read."""
    path = Path(name) if Path(name).is_absolute() or run.folder is None else run.folder / name
    text = read_text(path)
    if text is None:
        problem = f"{PRESET} reads the job from its TOML, but {path} cannot be read"
        raise UsageError(problem, hint="give its path as it is seen from here")
    try:
        return flat(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}", hint="correct it") from None


def with_settings(command: str, dialect: Dialect, values: Mapping[str, Value]) -> str:
    """Return the command with other settings; the last word of a dialect that has one stays the last."""
    if not values:
        return command
    text, last = _without_last(command)
    options = dict(values)
    if dialect.ac_is_subcommand and AC_MODE in options:
        mode = str(options.pop(AC_MODE)).replace("_", "-")
        last = last if (match := _SUBCOMMAND.match(last)) and match[1] == mode else f"activation-checkpoint:{mode}"
    line = ParsedCommand.of(text)
    for name, is_on in [(name, value) for name, value in options.items() if isinstance(value, bool)]:
        del options[name]
        section, _, key = name.rpartition(".")
        on, off = f"--{name}", f"--{section}.no_{key}"
        wanted, other = (on, off) if is_on else (off, on)
        line = line.remove(other)
        line = line if line.has(wanted) else line.append(wanted)
    line = line.set({f"--{name}": value for name, value in options.items()}, keeps_names=True)
    return line.append(last).text if last else line.text


def _without_last(command: str) -> tuple[str, str]:
    """Return the command without its last words, from that which chooses recomputation on, and these."""
    target = ParsedCommand.of(command).target
    words = target.words[target.first :]
    at = next((i for i, word in enumerate(words) if _SUBCOMMAND.fullmatch(word.value)), None)
    if at is None:
        return command, ""
    start, end = words[at].start, words[-1].end
    # With the blanks in front of it, so that writing twice changes nothing more.
    before = len(target.text[:start].rstrip())
    gone = splices_through(target.layers, [Splice(before, end, "")])
    return apply_splices(command, gone), target.text[start:end]
