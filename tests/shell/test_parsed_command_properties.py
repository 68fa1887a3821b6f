"""Edits commands drawn from a grammar, and asks a real shell and a real argparse what the program is then given."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from zenith_tune.shell import ParsedCommand, plain_value
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.shell.secrets import find_secrets
from zenith_tune.study.parameters import Value

OPTIONS = ("--tensor-model-parallel-size", "--micro-batch-size", "--recompute-method", "--min-lr")
FLAG = "--sequence-parallel"
DUMPER = """#!/bin/bash
printf '%s\\0' "$@" END "$A" "$B" >> "$DUMP"
"""
# Like the real one as far as options go, this srun runs what it is given.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -n ]] && shift; shift; done
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The arguments that a program was given: the words up to its script, those after it, and two variables."""

    launch: list[str]
    own: list[str]
    environment: list[str]


class Shell:
    """Run texts in a real bash whose programs only note what they are given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dump = folder / "dump"
        (folder / "bin").mkdir()
        for name in ("python", "torchrun", "deepspeed", "accelerate", "train.py"):
            self._program(name, DUMPER)
        self._program("srun", SRUN)

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, text: str) -> Seen:
        self.dump.write_bytes(b"")
        path = f"{self.folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"
        env = {"PATH": path, "DUMP": str(self.dump), "SET": "5", "TWO": "x 'y"}
        subprocess.run(["bash", "-c", text], cwd=self.folder, env=env, capture_output=True, check=False)
        (self.folder / "marker").unlink(missing_ok=True)
        words = self.dump.read_bytes().decode().split("\0")[:-1]
        assert words.count("END") == 1, f"the program ran {words.count('END')} times in {text!r}"
        end = words.index("END")
        script = words.index("train.py") + 1 if "train.py" in words else 0
        return Seen(launch=words[:script], own=words[script:end], environment=words[end + 1 :])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("a folder")
    yield Shell(folder)


def spellings(name: str) -> st.SearchStrategy[str]:
    written = st.sampled_from([name, name.replace("-", "_").replace("__", "--", 1)])
    return written.flatmap(lambda text: st.sampled_from([text, text, f'"{text}"', f"'{text}'", f"--'{text[2:]}'"]))


PLAIN_VALUES = st.sampled_from(["4", "-1", "-.5", "1e-5", "uniform", '"4"', "'a b'", '"it\'s"', "a\\ b", "$'a\\tb'"])
DYNAMIC_VALUES = st.sampled_from(["$SET", '"$TWO"', "${SET:-3}", "$(touch marker; echo 3)", "`touch marker; echo 3`"])
VALUES = st.one_of(PLAIN_VALUES, PLAIN_VALUES, DYNAMIC_VALUES, st.just("{mbs}"))
NOISE = ("--lr", "--data-path", "--num_layers", "--seed")


def option(name: str) -> st.SearchStrategy[str]:
    with_blank = st.builds(lambda key, blank, value: key + blank + value, spellings(name), BLANKS, VALUES)
    with_equals = st.builds("{}={}".format, spellings(name), VALUES)
    return st.one_of(with_blank, with_equals)


BLANKS = st.sampled_from([" ", " ", " ", "  ", "\t", " \\\n  "])
ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(OPTIONS).flatmap(option),
        st.sampled_from(NOISE).flatmap(option),
        st.sampled_from(["--bf16", "--no-save", "-v", "data", "'two words'", "a=b", "*.none", "''"]),
        st.sampled_from(
            ["--note '--micro-batch-size 4'", "--tail \\\n1", "2>/dev/null", "> out", ">>'out 2'", "< /dev/null"]
        ),
    ),
    max_size=7,
)
LAUNCHERS = st.sampled_from(
    [
        "python train.py",
        "train.py",
        "python -u -X dev train.py",
        "torchrun --nproc_per_node 8 --micro-batch-size 9 train.py",
        "torchrun $SET 'train.py'",
        "accelerate launch --num_processes=8 --option-from-tomorrow 3 train.py",
        "deepspeed --num_gpus 8 --min-lr 3 train.py",
        "python -m torch.distributed.run --standalone train.py",
        "srun -n 2 --label nice -n 1 torchrun train.py",
        "env C=3 timeout 60 python train.py",
        "exec python train.py",
    ]
)
ASSIGNMENTS = st.sampled_from(["", "", "A=1 ", "A='x y' B=\"$SET z\" ", "B=--micro-batch-size\\ 4 ", "A={mbs} "])
ENDINGS = st.sampled_from(["", "", " -- rest --micro-batch-size 4", ">log", " 2>&1", " > log 2>&1", " &>log"])
AROUND = st.sampled_from(
    [
        *("{}", "{}", "cd . && {}", "export Q=1; set -e\n{}", "[ -d . ] && {} || exit 1", "({})", "{{ {}\n}}"),
        *("{} | cat", "{} 2>&1 | tee log | grep x", "true; {}; echo done", "{} # --micro-batch-size 4", "time {}"),
        *("cat > here <<E\npython no.py\nE\n{}", "({}) 2>&1 | cat", "! {}"),
    ]
)


def in_single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def in_double(text: str, active: str = '\\"$`') -> str:
    return '"' + "".join("\\" + char if char in active else char for char in text) + '"'


NESTINGS = st.sampled_from(
    [
        lambda text: f"bash -c {in_single(text)}",
        lambda text: f"bash -c {in_double(text)}",
        lambda text: f"sh -c {in_single(text)} > /dev/null" if not re.search(r"\$'|&>|time ", text) else text,
        lambda text: f"env C=3 bash -euo pipefail -c {in_double(text)} 2>&1 | cat" if "grep" not in text else text,
        lambda text: f"srun -n 2 bash -c {in_single(text)} name arg",
    ]
)


@st.composite
def commands(draw: st.DrawFn) -> str:
    words = [draw(LAUNCHERS), *draw(ARGUMENTS)]
    text = words[0] + "".join(draw(BLANKS) + word for word in words[1:])
    text = draw(AROUND).format(draw(ASSIGNMENTS) + text + draw(ENDINGS))
    for nest in draw(st.lists(NESTINGS, max_size=2)):
        text = nest(text)
    return text


INJECTED = st.dictionaries(
    st.sampled_from(OPTIONS),
    st.one_of(
        st.integers(-9, 64), st.floats(-1, 1), st.booleans(), st.sampled_from(["full", "a b", "it's", "-x", "$SET"])
    ),
    min_size=1,
)


def others(own: list[str], names: list[str]) -> list[str]:
    """Return what is left of a program's arguments without some options and their values."""
    left, skip, is_open = [], False, True
    for word, following in itertools.zip_longest(own, own[1:], fillvalue="--"):
        is_open = is_open and word != "--"
        name = "--" + word.partition("=")[0][2:].replace("_", "-") if word.startswith("--") else ""
        if skip:
            skip = False
        elif is_open and name in names:
            skip = "=" not in word and re.match(r"-[^.\d]", following) is None
        else:
            left.append(word)
    return left


def read_back(own: list[str], names: list[str]) -> dict[str, str]:
    """Return what argparse reads for some options, in a program that accepts both spellings."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in names:
        parser.add_argument(name, "--" + name[2:].replace("-", "_"), dest=name)
    return vars(parser.parse_known_args(own)[0])


@pytest.mark.slow
@settings(max_examples=examples(250), deadline=None, derandomize=True)
@given(command=commands(), options=INJECTED)
def test_the_program_gets_the_options_and_otherwise_what_it_got_before(
    shell: Shell, command: str, options: dict[str, Value]
) -> None:
    filled, _ = fill_placeholders(command, {"mbs": 3})
    line = ParsedCommand.of(filled)
    edited = line.set(options)
    find_secrets(filled), line.warnings(), line.needs_shell, line.get("--lr"), line.program
    assert not (shell.folder / "marker").exists()

    before, after = shell.run(filled), shell.run(edited.text)

    assert after.launch == before.launch
    assert after.environment == before.environment
    assert others(after.own, list(options)) == others(before.own, list(options))
    wanted = {name: plain_value(value) for name, value in options.items()}
    assert read_back(after.own, list(options)) == wanted == {name: edited.get(name) for name in options}
    assert edited.set(options) == edited


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(command=commands(), name=st.sampled_from(OPTIONS))
def test_the_program_loses_an_option_and_gains_a_flag_and_keeps_the_rest(shell: Shell, command: str, name: str) -> None:
    filled, _ = fill_placeholders(command, {"mbs": 3})
    line = ParsedCommand.of(filled)
    without, flagged = line.remove(name), line.add_flag(FLAG)
    assert not (shell.folder / "marker").exists()

    before, removed, added = shell.run(filled), shell.run(without.text), shell.run(flagged.text)

    assert not without.has(name)
    assert removed.own == others(before.own, [name])
    assert (removed.launch, removed.environment) == (before.launch, before.environment)
    [at] = [index for index, word in enumerate(added.own) if word.replace("_", "-")[2:] == FLAG[2:]]
    assert added.own[:at] + added.own[at + 1 :] == before.own
    assert (added.launch, added.environment) == (before.launch, before.environment)
    assert flagged.add_flag(FLAG) is flagged


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(command=commands())
def test_without_shell_syntax_words_and_assignments_are_those_of_the_shell(shell: Shell, command: str) -> None:
    line = ParsedCommand.of(fill_placeholders(command, {"mbs": 3})[0])
    if line.needs_shell:
        return
    direct = ParsedCommand.from_argv(["env", *(f"{k}={v}" for k, v in line.assignments().items()), *line.argv()])
    assert shell.run(direct.text) == shell.run(line.text)
