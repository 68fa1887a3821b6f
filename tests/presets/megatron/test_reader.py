"""What a reader of shell scripts must not mistake: options that do not arrive, and values that have changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.shell.scripts.runs import ProgramRun

RUN = "torchrun pretrain_gpt.py"
SHAPE = (
    "--num-layers 16 --hidden-size 2048 --swiglu --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 16 --bf16 --vocab-size 32000"
)
LOOP = "while [ $# -gt 0 ]; do case $1 in --name) NAME=$2; shift 2;; *) shift;; esac; done"
FAKE_TORCHRUN = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$SEEN"
"""


def read(tmp_path: Path, text: str, *, before: str = "", after: str = "") -> ProgramRun | None:
    script = tmp_path / "train.sh"
    script.write_text(text)
    return find_pretrain_run(f"{before}bash {script}{after}", {})


def tp(tmp_path: Path, text: str, *, before: str = "") -> str:
    run = read(tmp_path, f'{text}\n{RUN} --tp "$TP"', before=before)
    assert run is not None
    return run.arguments[1]


SWALLOWS = [
    f'train() {{ {RUN} --a 1 "$@"; }}; train',
    f'function train {{\n  {RUN} --a 1 "$@"\n}}\ntrain --b',
    f'train() (\n  {RUN} --a 1 "$@"\n)\ntrain',
    f'{LOOP}\n{RUN} --a 1 "$@"',
    f'set -- --b\n{RUN} --a 1 "$@"',
    f'[ -f x ] && set -- "$@" --b\n{RUN} --a 1 "$@"',
    f'shift 3\n{RUN} --a 1 "$@"',
    f'shift $((OPTIND-1))\n{RUN} --a 1 "$@"',
]


@pytest.mark.parametrize("text", SWALLOWS)
def test_a_script_that_swallows_what_is_added_does_not_pass_it_on(text: str, tmp_path: Path) -> None:
    run = read(tmp_path, text)
    assert run is not None and run.added_at is None


@pytest.mark.parametrize(
    "text",
    [
        f'train() {{ {RUN} "$@"; }}; train "$@"',
        f'inner() {{ {RUN} "$@"; }}; outer() {{ inner "$@"; }}; outer "$@"',
        f'usage() {{ shift; set --; exit 1; }}; {RUN} "$@"',
        f'set -- "$@" --b; {RUN} "$@"',
        f'set -euo pipefail; {RUN} "$@"',
        f'train() {{ {RUN} "$@"; }}; if ! train "$@"; then exit 1; fi',
        f'run() {{ echo "$@"; "$@"; }}; run {RUN} --a 1 "$@"',
        f'cd . && train() {{ {RUN} "$@"; }} && train "$@" | tee log',
    ],
)
def test_a_script_that_hands_them_through_a_function_does(text: str, tmp_path: Path) -> None:
    run = read(tmp_path, text)
    assert run is not None and run.added_at is not None


@pytest.mark.parametrize("body", ['train() { WORLD_SIZE=8 python3 %s "$@"; }\ntrain', LOOP + '\npython3 %s "$@"'])
def test_a_preset_refuses_a_script_in_which_all_trials_would_run_alike(body: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("export WORLD_SIZE=8\n" + body % f"pretrain_gpt.py {SHAPE}")
    preset = MegatronLmPreset(cluster="h100x8")
    with pytest.raises(UsageError, match=r'train.sh .*\btp, pp\b.*"\$@"'):
        preset.bind(f"bash {script}")


VALUES = [
    "TP=8; (TP=4)",
    "TP=8; (TP=4; exit); TP=2",
    "TP=8; { TP=4; }",
    "TP=8; echo | TP=4",
    "TP=8; f() { TP=4; }",
    "TP=8; f() { TP=4; }; f",
    "TP=8; f() { local TP=4; }; f",
    "TP=8; f() { TP=$1; return; TP=1; }; f 2",
    "TP=8; f() { TP=4; }; TP=2 f",
    "TP=8; f() { g() { TP=3; }; g; }; f",
    "TP=; TP=${TP-8}x",
    "TP=8; if TP=4; then echo; elif TP=2; then echo; fi",
    "TP=; TP=${TP:-8}",
    "TP=${TP-8}",
    "TP=; TP=${TP+set}",
    "TP=$(((1-8)/2)); TP=$((TP%2))",
    "TP=8; (( 1 < 2 )); [ -z x ] && { TP=4; }; unset X",
    'TP=$0; TP="${TP:+named}"',
]


@pytest.mark.slow
@pytest.mark.parametrize("text", VALUES)
def test_a_value_is_what_bash_makes_of_it(text: str, tmp_path: Path) -> None:
    torchrun, bash = tmp_path / "torchrun", shutil.which("bash")
    torchrun.write_text(FAKE_TORCHRUN)
    torchrun.chmod(0o755)
    assert bash is not None
    found = tp(tmp_path, text)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    subprocess.run([bash, str(tmp_path / "train.sh")], env=environment, check=True, capture_output=True)
    assert found == (tmp_path / "seen").read_text().split("\0")[2]


@pytest.mark.parametrize(
    "text",
    [
        "for TP in 1 2; do echo; done",
        "while read TP; do echo; done",
        "let TP=TP*2",
        'let "TP *= 2"',
        "((TP*=2))",
        "(( TP = 4 ))",
        "printf -v TP 4",
        "mapfile -t TP < f",
        "read -r TP <<< 4",
        "declare -i TP=2*2",
        "case $X in a) TP=4;; esac",
        "case $X in\n  (a | b)\n    TP=4\n    ;;\nesac",
        "if [ -f x ]; then f() { TP=4; }; f; fi",
        "f() { read TP; }; f",
        "if read TP; then echo; fi",
        "if [ -f x ]; then echo; elif TP=4; then echo; fi",
    ],
)
def test_a_value_that_only_a_shell_knows_is_unknown_and_not_the_old_one(text: str, tmp_path: Path) -> None:
    assert tp(tmp_path, f"TP=8; {text}") == "$TP"


@pytest.mark.parametrize(("before", "value"), [("env TP=2 ", "2"), ("nohup env -u X TP=4 ", "4"), ("TP=1 ", "1")])
def test_what_env_sets_reaches_the_script(before: str, value: str, tmp_path: Path) -> None:
    assert tp(tmp_path, "TP=${TP:-8}", before=before) == value
    run = find_pretrain_run("env WORLD_SIZE=8 python3 pretrain_gpt.py", {})
    assert run is not None and run.variables["WORLD_SIZE"] == "8"
    quoted = find_pretrain_run("env 'A=two words' \"B=$X y\" WORLD_SIZE=8 torchrun pretrain_gpt.py", {"X": "x"})
    assert quoted is not None and quoted.variables == {"A": "two words", "B": "x y", "WORLD_SIZE": "8"}


def test_nothing_runs_behind_an_exit_that_is_certain(tmp_path: Path) -> None:
    assert read(tmp_path, f"exit 0\n{RUN}") is None
    assert read(tmp_path, f"f() {{ exit 1; }}; f; {RUN}") is None
    for text in (f"[ -f x ] || exit 1\n{RUN}", f"(exit 1)\n{RUN}", f"f() {{ return; {RUN} --no; }}; f; {RUN}"):
        run = read(tmp_path, text)
        assert run is not None and run.arguments == (), text


def test_a_run_under_a_condition_that_is_not_followed_is_reported(tmp_path: Path) -> None:
    line = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE}"
    script = tmp_path / "train.sh"
    preset = MegatronLmPreset(cluster="h100x8")
    for text, is_reported in (
        (f"case $X in a) {line} --a;; b) {line} --b;; esac", True),
        (f"if [ -f x ]; then {line}; else {line} --b; fi", True),
        (f"if [ 1 = 1 ]; then {line}; fi", False),
        (f"mkdir -p logs && {line}", False),
    ):
        script.write_text(text)
        notes = [note for note in preset.warnings(f"bash {script}") if "is it the run meant" in note]
        assert bool(notes) is is_reported, text


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("if [ -f x ]; then A='--recompute-activations'; fi", ["--recompute-activations"]),
        ("B=(--bf16); if [ -f x ]; then B+=(--sequence-parallel --fp16); fi", ["--sequence-parallel"]),
        ("if [ -f x ]; then A=--sequence-parallel; fi; A=", []),
        ("if [ -f x ]; then A='--wandb-project mine'; fi", []),
        ("A=--sequence-parallel", []),
    ],
)
def test_switches_behind_a_condition_that_is_not_followed_are_named(
    text: str, options: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'{text}\ntorchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} $A ${{B[@]}} "$@"')
    notes = [note for note in MegatronLmPreset(cluster="h100x8").warnings(f"bash {script}") if "take that away" in note]
    assert [option for note in notes for option in note.split() if option.startswith("--")] == options


def test_a_run_that_was_found_stays_found_whatever_follows(tmp_path: Path) -> None:
    for after in (f"bash {tmp_path}/train.sh", "f() { f; }; f", 'eval "echo \'unclosed"', "true\n" * 30_000):
        run = read(tmp_path, f"{RUN} --a\n{after}")
        assert run is not None and run.arguments == ("--a",), after[:40]
