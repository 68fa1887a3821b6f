"""A command that starts a shell script, with the script's training command taken out of it for trials to change."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from zenith_tune.errors import CommandError
from zenith_tune.shell.launcher_catalog import LAUNCHERS, SHELLS, STARTERS, TRAINERS
from zenith_tune.shell.launchers import EVALUATED, PYTHON
from zenith_tune.shell.lexer import CONTROL_FLOW, Redirection, Word, lex
from zenith_tune.shell.options import Splice, apply_splices, deletion
from zenith_tune.shell.parsed_command import ParsedCommand, script_text
from zenith_tune.shell.scripts.interpreter import REST, ShellVariables
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs
from zenith_tune.shell.target import splices_through

MOST_CHARACTERS = 60_000
"""Of a script: with quotes and all, Linux takes 131,072 bytes in a word of a command."""
OWN_PLACE = re.compile(r"\$(?:BASH_SOURCE\b|\{BASH_SOURCE(?:\[0\])?\})")
ONE_EXPANSION = re.compile(r"\$(?:\w+|\{[^{}]*\})", re.ASCII)
NO_TRAINING = {"pip", "venv", "ensurepip", "compileall", "json.tool", "site", "torch.utils.collect_env"}
"""Modules of Python that scripts run beside their training."""
MAKES = ("make", "gmake")
VARIABLE = re.compile(r"^(\w+) :?= (.*)$", re.MULTILINE | re.ASCII)
EXPORTED = re.compile(r"^export +([A-Za-z_][\w ]*)", re.MULTILINE | re.ASCII)
MAKE_S = 20.0
"""How long `make -n` may take to list a recipe."""
TIMED_OUT = 124
"""The exit code of `timeout`."""
DATABASE = "# Make data base, printed on "
UNSEEN = "zenithtune: no line of the recipe had the training command that make had listed: it changes with each run"
RUN_AT_ONCE = re.compile(r"^\t[@-]*(?:\+|.*\$[({]MAKE[)}](?! *[\w.=-]*(?: +[\w.=-]+)*$))", re.MULTILINE)
"""A line of a recipe that make runs also where it only lists, but for one that makes another target here."""
RECIPE = """\
export zenithtune_command=$1 zenithtune_old={old} zenithtune_new={new}
shell=$(mktemp -d) && trap 'rm -rf "$shell"' EXIT
printf '%s\\n' '#!/bin/bash' 'line=${{!#}}' {line} >"$shell/sh"
chmod +x "$shell/sh"
{make}
status=$?
[ -e "$shell/ran" ] || {{ echo {unseen} >&2; status=1; }}
rm -rf "$shell"; exec bash -c "exit $status"  # the next line is never run: it shows what make runs
{evaluated}
"""
RECIPE_LINE = (
    'new="${{line//"$zenithtune_old"/$zenithtune_new}}"; [ "$new" = "$line" ] || : >"${{0%/*}}/ran"; '
    'exec {shell} "${{@:1:$#-1}}" "$new"'
)
"""What runs a line of a recipe, with the training command taken from its argument."""
OPENED = "zenithtune_command=$1"
"""The begin of the text of a script whose training command is an argument."""
OF_A_TEXT = re.compile(r"-[a-z]*c")
TAKEN_OUT = f"{OPENED} zenithtune_text=1"
TAKEN_OUT_OF_ALL = f"{TAKEN_OUT} zenithtune_all=1"
"""The begin of a text of which the training command was taken out: that of a shell's `-c`, or a whole command."""
NAMED = re.compile(r"\$\{?#?([A-Za-z_]\w*|[0-9@*#])", re.ASCII)


def opened_script(command: str) -> str:
    """Return a command that runs the text of its script, in which the training command is an argument.

    The training command is evaluated where it stood, with the script's own variables; those that hold options are
    written out. Raises CommandError with the reason where the script cannot be read so far.
    """
    if (recipe := _with_recipe_opened(command)) is not None:
        return recipe
    try:
        ParsedCommand.of(command).target  # noqa: B018
    except CommandError:
        with contextlib.suppress(CommandError):
            return _with_text_opened(command)
        raise
    for _ in range(3):  # a script may start another
        target = ParsedCommand.of(command).target
        if not target.by_shell:
            break
        command = _with_script_opened(command)
    return command


def _with_text_opened(command: str) -> str:
    """Return the text of a shell's `-c`, or a command of several lines, with its training command as an argument."""
    first, *more = ParsedCommand.of(command).commands
    words = [] if more or first.redirections else first.words
    if len(words) > 2 and _name(words[0].value) in SHELLS and OF_A_TEXT.fullmatch(words[1].value):
        start, text, mark = command[words[0].start : words[2].start], words[2].value, TAKEN_OUT
        arguments = [text_of(command, word) for word in words[3:]]
    else:
        start, text, mark, arguments = "bash -c ", command, TAKEN_OUT_OF_ALL, []
    if not any(each.words and each.words[0].value in CONTROL_FLOW for each in ParsedCommand.of(text).commands):
        raise CommandError("the text must have control flow, to be changed")
    body, line = _taken_out(command, "the text", text)
    name, *given = arguments or ["bash"]
    prefix = f"{mark}; set -- {' '.join(given)}".rstrip() + "\n"
    return f"{start}{shlex.quote(prefix + body)} {name} {shlex.quote(line)}"


def with_text_closed(command: str) -> str:
    """Return a text whose training command was taken out with that command in its place; others as they are."""
    words = ParsedCommand.of(command).commands[0].words if TAKEN_OUT in command else ()
    at = next((place for place, word in enumerate(words) if word.value.startswith(TAKEN_OUT)), None)
    if at is None or len(words) < at + 3:
        return command
    prefix, _, body = words[at].value.partition("\n")
    text = body.replace(EVALUATED, words[at + 2].value)
    if prefix.startswith(TAKEN_OUT_OF_ALL):
        return text
    given = prefix.partition("; set --")[2].strip()
    arguments = f" {text_of(command, words[at + 1])} {given}" if given else ""
    return f"{command[: words[at].start]}{shlex.quote(text)}{arguments}"


def _taken_out(command: str, script: str, text: str) -> tuple[str, str]:
    """Return the text of a script without its training command, and that command."""
    written = _training_command(command, script, text)
    start, end = written[0][0].start, written[-1][0].end
    if any(isinstance(each, Redirection) and start < each.start < end for each in lex(text)):
        raise CommandError(f"{script} has a redirection among the words of its training command")
    return text[:start] + EVALUATED + text[end:], " ".join(out for _, outs in written for out in outs)


def _with_script_opened(command: str) -> str:
    target = ParsedCommand.of(command).target
    script, arguments = target.words[target.first - 1], target.words[target.first :]
    text = script_text(script.value) if script.is_static and not target.changes_folder else ""
    if not text or len(text) > MOST_CHARACTERS:
        raise CommandError(f"{script.value} must be a script of at most {MOST_CHARACTERS:,} characters, to be changed")
    body, line = _taken_out(command, script.value, text)
    given = " ".join(text_of(target.text, word) for word in arguments)
    prefix = f"{OPENED}; set -- {given}".rstrip() + "\n"
    opened = f"-c {shlex.quote(prefix + OWN_PLACE.sub('$0', body))} {text_of(target.text, script)} {shlex.quote(line)}"
    before = _name(target.words[target.first - 2].value) if target.first > 1 else ""
    shell = "" if before in SHELLS or before.startswith("-") else f"{_shell_of(text)} "
    last = arguments[-1] if arguments else script
    splices = splices_through(target.layers, [Splice(script.start, last.end, shell + opened)])
    return apply_splices(command, splices)


def _with_recipe_opened(command: str) -> str | None:
    """Return a `make` whose shell runs another training command where the recipe has one; None of another program.

    The rest is make's own: variables, exports, prerequisites and what its recipe does besides.
    """
    first, *more = ParsedCommand.of(command).commands
    if not first.words or _name(first.words[0].value) not in MAKES:
        return None
    if more or first.redirections:
        raise CommandError("make must be the whole command, to be changed")
    at = first.words[0].end
    rules = _listed(f"{command[:at]} -npq .DEFAULT{command[at:]}")  # of no target, so that nothing is run
    if match := RUN_AT_ONCE.search(rules):
        problem = f"make runs {match[0].strip()[:40]!r} of a recipe also where it only lists"
        raise CommandError(f"{problem}, so that it is left alone: give the training command itself")
    recipe, _, database = _listed(f"{command[:at]} -np --no-print-directory{command[at:]}").partition(DATABASE)
    variables = dict(VARIABLE.findall(database))
    makefiles = "\n".join(map(script_text, variables.get("MAKEFILE_LIST", "").split()))
    names = [name for names in EXPORTED.findall(makefiles) for name in names.split()]
    known = {name: variables[name] for name in names if name in variables and "$" not in variables[name]}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in known.items())
    recipe = exports + recipe
    written = _training_command(recipe, "make", recipe)
    body = exports + RECIPE.format(
        old=shlex.quote(recipe[written[0][0].start : written[-1][0].end]),
        new=shlex.quote(EVALUATED),
        evaluated=EVALUATED,
        unseen=shlex.quote(UNSEEN),
        line=shlex.quote(RECIPE_LINE.format(shell=variables.get("SHELL", "/bin/sh"))),
        make=f'{command[:at]} SHELL="$shell/sh"{command[at:]}',
    )
    line = " ".join(out for _, outs in written for out in outs)
    return f"bash -c {shlex.quote(body)} make {shlex.quote(line)}"


def _listed(command: str) -> str:
    """Return what make lists, in English; what takes too long is ended with all that it started."""
    argv = ["timeout", "--kill-after=1", f"{MAKE_S:g}", "bash", "-c", command]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C", "LANGUAGE": ""}, check=False
        )
    except (OSError, ValueError) as error:
        raise CommandError(f"make does not list its recipe: {error}") from None
    if done.returncode == TIMED_OUT:
        raise CommandError(f"make does not list its recipe within {MAKE_S:g} s")
    return done.stdout


def training_line(command: str) -> str:
    """Return the training command of an opened script, and any other command as it is."""
    target = ParsedCommand.of(command).found_target if EVALUATED in command else None
    return target.text if target is not None and target.layers else command


class ScriptChange(NamedTuple):
    """A user's script, and its text with another training command."""

    path: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        """What `patch` takes to change the script."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, self.path, self.path))


def changed_script(own: str, changed: str) -> ScriptChange | None:
    """Return the script that was opened for one command, with the training command that it has in another.

    Words of the script that stay the same are left as they are written. None where there is no such script any more.
    """
    if EVALUATED not in own:
        return None
    words = [word.value for word in ParsedCommand.of(own).target.layers[0].commands[0].words]
    at = next((place for place, word in enumerate(words) if EVALUATED in word), 0)
    path, arguments = words[at + 1], words[at].partition("set --")[2].partition("\n")[0]
    text = script_text(path)
    try:
        written = _training_command(f"bash {shlex.quote(path)} {arguments}", path, text)
        new = [
            each for token in lex(training_line(changed)) if (each := training_line(changed)[token.start : token.end])
        ]
    except CommandError:
        return None
    after = apply_splices(text, list(_changes(text, written, new)))
    return ScriptChange(path, text, after) if after != text else None


def with_script(changed: str, script: ScriptChange) -> str:
    """Return a command of an opened script as one that runs the changed script's text, as the user would read it."""
    words = ParsedCommand.of(changed).commands[0].words
    at = next((place for place, word in enumerate(words) if word.value.startswith(OPENED)), None)
    if at is None or len(words) < at + 3:
        return changed
    body = OWN_PLACE.sub("$0", script.after).rstrip("\n")
    end = next(name for name in _names_besides("SCRIPT") if name not in body.splitlines())
    given = words[at].value.partition("\n")[0].partition("set --")[2].strip()
    text = f"\"$(cat <<'{end}'\n{body}\n{end}\n)\" {text_of(changed, words[at + 1])} {given}".rstrip()
    return f"{changed[: words[at].start]}{text}{changed[words[at + 2].end :]}"


def _names_besides(name: str) -> Iterator[str]:
    return (name + "_" * number for number in itertools.count())


def _changes(text: str, written: Sequence[tuple[Word, list[str]]], new: list[str]) -> Iterator[Splice]:
    """Yield what puts new words in place of the old ones, each of which stands for some words that are written out."""
    old = [(place, out) for place, (_, outs) in enumerate(written) for out in outs]
    kept: dict[int, list[str]] = {place: [] for place in range(len(written))}
    matcher = difflib.SequenceMatcher(None, _keys([out for _, out in old]), _keys(new), autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            for (place, _), out in zip(old[start:end], new[first:last], strict=True):
                kept[place].append(out)
        elif (
            kind == "insert" and start and old[start - 1][0] != old[min(start, len(old) - 1)][0]
        ):  # behind the words of a place
            at = written[old[start - 1][0]][0].end
            yield Splice(at, at, "".join(f" {word}" for word in new[first:last]))
        else:
            kept[old[min(start, len(old) - 1)][0]] += new[first:last]
    for place, (word, outs) in enumerate(written):
        if kept[place] != outs:
            yield Splice(word.start, word.end, " ".join(kept[place])) if kept[place] else deletion(text, word)


def _keys(words: Sequence[str]) -> list[str]:
    """Return what the words of two commands are matched by: an option's value counts as that option's."""
    return [f"{before}=" if before[:1] == "-" != word[:1] else word for before, word in pairwise(["", *words])]


def text_of(text: str, word: Word) -> str:
    """Return a word as it is written."""
    return text[word.start : word.end]


def _shell_of(text: str) -> str:
    """Return the shell that a script's first line asks for."""
    words = text.partition("\n")[0].removeprefix("#!").split() if text.startswith("#!") else []
    at = next((place for place, word in enumerate(words) if _name(word) in SHELLS), None)
    return "bash" if at is None else " ".join(words[at:])


def _training_command(command: str, script: str, text: str) -> list[tuple[Word, list[str]]]:
    """Return the words of the one command of a script that trains, each with what it is where options are put in."""
    tokens = set(lex(text))

    def is_program(words: Sequence[str], at: int) -> bool:
        return not at and script not in words and _trains(words)

    free = _runs_in(tokens, find_runs(command, is_program, {}, is_open=True).runs)
    here = _runs_in(tokens, find_runs(command, is_program).runs)
    if len(here) != 1:
        found = ", ".join(run.program for run in here) or "none"
        raise CommandError(f"{script} must start one program that trains, to be changed, but it starts {found}")
    source = here[0].source
    readings = [run.source.variables for run in (*free, *here) if run.source.words == source.words]
    written = [(word, [text_of(text, word)]) for word in (*source.settings, *source.words)]
    for word, outs in written[len(source.settings) :]:
        options = (_written_out(word, variables) for variables in readings)
        outs[:] = next((each for each in options if each is not None), outs)
    return written


def _runs_in(tokens: Collection[object], runs: Sequence[ProgramRun]) -> list[ProgramRun]:
    """Return the different runs that stand in a text: those with a launcher of ranks, else of no other script."""
    found = list({run.source.words: run for run in runs if all(word in tokens for word in run.source.words)}.values())
    launched = [run for run in found if _name(run.program) in STARTERS - SHELLS]
    return launched or [run for run in found if _name(run.program) not in SHELLS] or found


def _trains(words: Sequence[str]) -> bool:
    """Return whether a command may be the one that trains: Python, or what starts it, with a script or a module."""
    name, rest = _name(words[0]), words[1:]
    if PYTHON.fullmatch(name) and (rest[:1] == ["-c"] or (rest[:1] == ["-m"] and {*rest[1:2]} & NO_TRAINING)):
        return False
    if name in TRAINERS or name.endswith(".py"):
        return True
    launcher = LAUNCHERS.get(name)
    if launcher is None and name not in SHELLS and not PYTHON.fullmatch(name):
        return False
    starts = any(word.endswith((".py", ".sh")) or word in ("-m", "--module") or word in TRAINERS for word in rest)
    return starts and all(word in rest for word in (launcher.subcommands if launcher else ()))


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _written_out(word: Word, variables: ShellVariables) -> list[str] | None:
    """Return the words that the script's variables make of one; None where they set nothing in it, or it is unsure."""
    names = set(NAMED.findall(word.value))
    # The arguments of a script are followed, those of a text of `-c` are not.
    is_set = any(name in variables.values or (variables.name and not re.match("[A-Za-z_]", name)) for name in names)
    if word.is_static or not is_set or names & (variables.unsure | variables.extended):
        return None
    if any(variables.values.get(name) == [""] for name in names) and not ONE_EXPANSION.fullmatch(word.value):
        return None  # where it runs it may have a value: it is a part of an address, say, and of no option
    written: list[str] = []
    for value in variables.expand(word):
        if not re.search(r"[$`]", value):
            written += [] if value == REST else [shlex.quote(value)]
        elif ONE_EXPANSION.fullmatch(value):
            written.append(value)
        elif re.fullmatch(r"\$\([^()]*\)", value) or not re.search(r"\$\(|[`\"\\]", value):
            written.append(f'"{value}"')
        else:
            return None
    return written
