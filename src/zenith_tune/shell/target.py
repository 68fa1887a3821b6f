"""The one simple command of a shell text that trains, or the reason why options have no safe place in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zenith_tune.errors import CommandError
from zenith_tune.shell.launcher_catalog import LAUNCHERS, SHELLS, STARTERS, TRAINERS
from zenith_tune.shell.launchers import (
    ASSIGNMENT,
    BACKGROUND,
    HINT,
    LEAVE_OUT,
    PYTHON,
    ShellText,
    locate,
    program_name,
    refusal,
    shown_text,
    starts_nothing,
)
from zenith_tune.shell.lexer import (
    CONTROL_FLOW,
    FOLDER_CHANGES,
    KEYWORDS,
    TRIVIAL,
    TRIVIAL_ALONE,
    Operator,
    Redirection,
    Token,
    Word,
    lex,
)
from zenith_tune.shell.options import Splice, splices_in_source


class SimpleCommand(NamedTuple):
    """One command between operators."""

    assignments: tuple[Word, ...]
    words: tuple[Word, ...]
    redirections: tuple[Redirection, ...]
    keywords: tuple[str, ...]
    opener: str
    closer: str


class Layer(NamedTuple):
    """A word whose value, from `offset` on, is a shell text of its own, as after `bash -c`."""

    word: Word
    offset: int
    commands: tuple[SimpleCommand, ...]
    """The commands of the text that the word stands in."""


class Target(NamedTuple):
    """The command that trains, where its own arguments begin, and the words that it is nested in."""

    text: str
    """The shell text that the words' places refer to: the whole command, or the innermost `bash -c`."""
    commands: tuple[SimpleCommand, ...]
    """The commands of that text."""
    words: tuple[Word, ...]
    outer_words: tuple[Word, ...]
    """The words of the outermost command, which starts the shells that `layers` go through."""
    first: int
    by_shell: bool
    layers: tuple[Layer, ...]
    changes_folder: bool


def simple_commands(tokens: Sequence[Token]) -> Iterator[SimpleCommand]:
    """Split tokens at their operators; comments and what stands in `[[ .. ]]` do not count."""
    words: list[Word] = []
    redirections: list[Redirection] = []
    opener = ""
    for token in (*tokens, Operator(0, 0, "")):
        if isinstance(token, Word):
            words.append(token)
        elif isinstance(token, Redirection):
            redirections.append(token)
        elif token.text == "#" or (token.text and words and words[0].value == "[[" and words[-1].value != "]]"):
            continue
        else:
            yield _simple_command(words, redirections, opener, token.text)
            words, redirections, opener = [], [], token.text


def _simple_command(words: list[Word], redirections: list[Redirection], opener: str, closer: str) -> SimpleCommand:
    start = 0
    while start < len(words) and _is_keyword(words[start], after_time=start > 0 and words[start - 1].value == "time"):
        start += 1
    end = start
    while end < len(words) and is_assignment(words[end]):
        end += 1
    keywords = tuple(word.value for word in words[:start])
    return SimpleCommand(tuple(words[start:end]), tuple(words[end:]), tuple(redirections), keywords, opener, closer)


def _is_keyword(word: Word, after_time: bool) -> bool:
    is_unquoted = word.end - word.start == len(word.value)
    return is_unquoted and (word.value in KEYWORDS or (after_time and word.value == "-p"))


def is_assignment(word: Word) -> bool:
    """Tell whether a word in front of a program sets a variable for it."""
    return bool(word.parts) and ASSIGNMENT.match(word.parts[0].value) is not None and word.parts[0].start == word.start


def find_target(text: str, commands: tuple[SimpleCommand, ...]) -> Target:
    """Find the training command of a shell text, or raise `CommandError` with the reason why there is none."""
    candidates = _candidates(commands)
    if len(candidates) != 1:
        # Programs are named by their first words only: what follows may hold a secret.
        shown = filter(None, (shown_text(command.words[:2]) for command in candidates or commands))
        part = f" ({', '.join(map(repr, shown))})".replace(" ()", "")
        problem = f"the training command must start one program that trains, but it starts {len(candidates) or 'none'}"
        raise CommandError(f"{problem}{part}", hint=HINT)
    [command] = candidates
    before = commands[: commands.index(command)]
    moves = any(earlier.words and earlier.words[0].value in FOLDER_CHANGES for earlier in before)
    words, place = command.words, locate(command.words)
    if not isinstance(place, ShellText):
        return Target(text, commands, words, words, place.first, place.by_shell, (), moves)
    layer = Layer(words[place.word], place.offset, commands)
    inner_text = layer.word.value[layer.offset :]
    inner = find_target(inner_text, tuple(simple_commands(lex(inner_text, is_posix=place.is_posix))))
    layers = (layer, *inner.layers)
    return inner._replace(outer_words=words, layers=layers, changes_folder=moves or inner.changes_folder)


def splices_through(layers: Sequence[Layer], splices: Sequence[Splice]) -> Sequence[Splice]:
    """Turn splices of the innermost text into splices of the whole command."""
    for layer in reversed(layers):
        moved = [Splice(start + layer.offset, end + layer.offset, text) for start, end, text in splices]
        splices = splices_in_source(layer.word, moved)
    return splices


def _candidates(commands: Sequence[SimpleCommand]) -> list[SimpleCommand]:
    """Return the commands that may be the training program: neither trivial nor fed by another candidate's pipe."""
    found: list[SimpleCommand] = []
    groups: list[int] = []
    has_upstream = False
    for place, command in enumerate(commands):
        _check_structure(command, is_last=not any(each.words for each in commands[place + 1 :]))
        if command.opener == ")" or "}" in command.keywords:
            has_upstream = len(found) > (groups.pop() if groups else 0)
        elif command.opener not in ("|", "|&"):
            has_upstream = False
        if command.closer == "(" or "{" in command.keywords:
            groups.append(len(found))
        if command.words and not has_upstream and not _is_trivial(command.words):
            for redirection in command.redirections:
                if redirection.operator in ("<<", "<<-"):
                    problem = "a training program must not be fed by a here-document"
                    raise refusal(problem, f"<<{redirection.target.value}")
            found.append(command)
            has_upstream = True
        elif command.words and has_upstream and _is_known(command.words[0]) and not _is_known(found[-1].words[0]):
            found.append(command)  # either may be the one: `lz4 -dc x | python train.py`, `trainer | python watch.py`
    return found


def _is_known(program: Word) -> bool:
    """Tell whether a program is one of those that trainings are started by, or a file of the user's own."""
    name = program_name(program) or ""
    known = {*LAUNCHERS, *SHELLS, *STARTERS, *TRAINERS}
    return PYTHON.fullmatch(name) is not None or name in known or "/" in program.value


def _check_structure(command: SimpleCommand, *, is_last: bool) -> None:
    first = command.words[0].value if command.words else ""
    if first in CONTROL_FLOW:
        raise refusal("options cannot be added to control flow", first)
    if command.closer == "&":
        raise refusal(BACKGROUND, f"{first} ... &".strip(), LEAVE_OUT if is_last else f"{LEAVE_OUT}, or {HINT}")
    if command.closer == "(" and first:
        raise refusal("options cannot be added to a function", f"{first}()")
    if command.closer in (";;", ";&", ";;&"):
        raise refusal("options cannot be added to control flow", command.closer)


def _is_trivial(words: Sequence[Word]) -> bool:
    name = program_name(words[0])
    return name in TRIVIAL or (len(words) == 1 and name in TRIVIAL_ALONE) or starts_nothing(words)
