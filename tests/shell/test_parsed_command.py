"""Edits the options of commands by example: each expected text differs from the command in those options alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.parsed_command import plain_value
from zenith_tune.study.parameters import Value

TP, MBS = "--tensor-model-parallel-size", "--micro-batch-size"


def spelled(text: str) -> str:
    """Write the options out, so that the tables below stay readable."""
    for short, long in {"tp": TP[2:], "mbs": MBS[2:]}.items():
        text = re.sub(rf"--{short}\b", f"--{long}", text)
        text = re.sub(rf"--_{short}\b", f"--{long.replace('-', '_')}", text)
    return text


FORMS = [
    ("python t.py", "python t.py --tp 8"),
    ("python t.py --tp 4", "python t.py --tp 8"),
    ("python t.py --tp=4", "python t.py --tp=8"),
    ("python t.py --_tp 4 --lr 1", "python t.py --_tp 8 --lr 1"),
    ("python t.py --_tp=4", "python t.py --_tp=8"),
    ('python t.py "--tp" "4"', 'python t.py "--tp" "8"'),
    ('python t.py --tp="4"', 'python t.py --tp="8"'),
    ("python t.py '--tp=4'", "python t.py '--tp=8'"),
    ('python t.py --tp="$TP"', 'python t.py --tp="8"'),
    ("python t.py --tp $TP x", "python t.py --tp 8 x"),
    ("python t.py --tp ${TP:-4}", "python t.py --tp 8"),
    ("python t.py --tp $(nproc)", "python t.py --tp 8"),
    ("python t.py --tp -1", "python t.py --tp 8"),
    ("python t.py --tp=-1", "python t.py --tp=8"),
    ("python t.py --tp -.5", "python t.py --tp 8"),
    ("python t.py --tp", "python t.py --tp 8"),
    ("python t.py --tp --bf16", "python t.py --tp 8 --bf16"),
    ("python t.py --tp -x", "python t.py --tp 8 -x"),
    ("python t.py --tp=", "python t.py --tp=8"),
    ("python t.py --tp ''", "python t.py --tp '8'"),
    ("python t.py --tp 4 --lr 1 --tp=2 --_tp 1", "python t.py --tp 8 --lr 1 --tp=8 --_tp 8"),
    ("python t.py --tp 4 \\\n    --lr 1", "python t.py --tp 8 \\\n    --lr 1"),
    ("python t.py \\\n    --lr 1 \\\n", "python t.py \\\n    --lr 1 --tp 8 \\\n"),
    ("python t.py  --lr   1\t", "python t.py  --lr   1 --tp 8\t"),
    ("python t.py -- --tp 4", "python t.py --tp 8 -- --tp 4"),
    ("python t.py --lr 1 -- x", "python t.py --lr 1 --tp 8 -- x"),
    ("python t.py --note '--tp 4'", "python t.py --note '--tp 4' --tp 8"),
    ("python t.py --$X 4", "python t.py --$X 4 --tp 8"),
    ("python t.py $ARGS", "python t.py $ARGS --tp 8"),
    ("python t.py --tp-extra 4", "python t.py --tp-extra 4 --tp 8"),
]
PLACES = [
    ("python t.py > log 2>&1", "python t.py --tp 8 > log 2>&1"),
    ("python t.py 2>&1 | tee log", "python t.py --tp 8 2>&1 | tee log"),
    ("python t.py > log --tp 4 2>&1", "python t.py > log --tp 8 2>&1"),
    ("> log python t.py", "> log python t.py --tp 8"),
    ("python t.py --tp 2>log", "python t.py --tp 8 2>log"),
    ("python t.py --tp a>log", "python t.py --tp 8 >log"),
    ("python t.py>log", "python t.py --tp 8 >log"),
    ("python t.py &> log", "python t.py --tp 8 &> log"),
    ("python t.py < in.txt", "python t.py --tp 8 < in.txt"),
    ("python t.py <<< yes", "python t.py --tp 8 <<< yes"),
    ("python t.py > >(tee log) 2>&1", "python t.py --tp 8 > >(tee log) 2>&1"),
    ("A=1 B='x y' python t.py", "A=1 B='x y' python t.py --tp 8"),
    ("python t.py # --tp 4", "python t.py --tp 8 # --tp 4"),
    ("cd x && python t.py", "cd x && python t.py --tp 8"),
    (
        "cd x && source env.sh; export A=1; torchrun --tp 2 t.py --tp 4 || exit 1",
        "cd x && source env.sh; export A=1; torchrun --tp 2 t.py --tp 8 || exit 1",
    ),
    ("(cd x; python t.py) 2>&1 | awk '{print}'", "(cd x; python t.py --tp 8) 2>&1 | awk '{print}'"),
    ("{ python t.py; } | tee log", "{ python t.py --tp 8; } | tee log"),
    ("time ! python t.py", "time ! python t.py --tp 8"),
    ("echo y | python t.py | grep loss", "echo y | python t.py --tp 8 | grep loss"),
    ("yes | python t.py --tp 4", "yes | python t.py --tp 8"),
    ("zcat d.gz | jq -c .text | python t.py", "zcat d.gz | jq -c .text | python t.py --tp 8"),
    ("seq 9 | shuf | accelerate launch t.py | ts", "seq 9 | shuf | accelerate launch t.py --tp 8 | ts"),
    ("python t.py 2>&1 | python filter.py | ts", "python t.py --tp 8 2>&1 | python filter.py | ts"),
    ("(cd x; python t.py; ls) | perl -ne x", "(cd x; python t.py --tp 8; ls) | perl -ne x"),
    ("[[ -f x && -d y ]] && python t.py", "[[ -f x && -d y ]] && python t.py --tp 8"),
    ("set -e\npython t.py\necho done", "set -e\npython t.py --tp 8\necho done"),
    ("A=(1 2)\npython t.py ${A[@]}", "A=(1 2)\npython t.py ${A[@]} --tp 8"),
    ("cat > c <<E\npython a.py --tp 4\nE\npython t.py", "cat > c <<E\npython a.py --tp 4\nE\npython t.py --tp 8"),
    ("exec > log\npython t.py", "exec > log\npython t.py --tp 8"),
    ("uv sync && uv run t.py; exit $?", "uv sync && uv run t.py --tp 8; exit $?"),
    ("bash train.sh a b", "bash train.sh a b --tp 8"),
    ("sbatch -N 2 train.sh", "sbatch -N 2 train.sh --tp 8"),
    ("accelerate launch --tp 2 train.py --tp 4", "accelerate launch --tp 2 train.py --tp 8"),
    ("megatron sft --model x", "megatron sft --model x --tp 8"),
]
NESTED = [
    ('bash -c "python t.py"', 'bash -c "python t.py --tp 8"'),
    ("sh -lc 'cd x && python t.py --tp 4 | tee log'", "sh -lc 'cd x && python t.py --tp 8 | tee log'"),
    ("bash -euo pipefail -c 'python t.py'", "bash -euo pipefail -c 'python t.py --tp 8'"),
    ("env X=1 bash -c 'python t.py' > log", "env X=1 bash -c 'python t.py --tp 8' > log"),
    ("srun -n 2 bash -c 'python t.py --tp=4'", "srun -n 2 bash -c 'python t.py --tp=8'"),
    ('bash -c "python t.py --tp $TP --x \\"a b\\""', 'bash -c "python t.py --tp 8 --x \\"a b\\""'),
    ("bash -c 'python t.py --x '\\''a b'\\'''", "bash -c 'python t.py --x '\\''a b'\\'' --tp 8'''"),
    ("bash -c \"bash -c 'python t.py --tp 4'\"", "bash -c \"bash -c 'python t.py --tp 8'\""),
    ("bash -c python\\ t.py\\ --tp\\ 4", "bash -c python\\ t.py\\ --tp\\ 8"),
    ("bash -c python\\ t.py", "bash -c python\\ t.py' --tp 8'"),
    ("bash -c $'python t.py\\t--tp\\t4'", "bash -c $'python t.py\\t--tp\\t8'"),
    ("bash -c 'python t.py --tp '\"1\"'6 --lr 1'", "bash -c 'python t.py --tp '\"8\"' --lr 1'"),
    ("sbatch --wrap='python t.py' -N 2", "sbatch --wrap='python t.py --tp 8' -N 2"),
    ('sh -c "python t.py --x \\"\\${A:-it\'s}\\""', 'sh -c "python t.py --x \\"\\${A:-it\'s}\\" --tp 8"'),
    ("/bin/sh -c \"python t.py --x $'a b'\"", "/bin/sh -c \"python t.py --x $'a b' --tp 8\""),
    ("dash -c \"python t.py --tp $'4' --lr 1\"", "dash -c \"python t.py --tp 8'' --lr 1\""),
]


@pytest.mark.parametrize(("command", "expected"), FORMS + PLACES + NESTED)
def test_an_option_is_replaced_where_it_is_and_added_where_it_is_not(command: str, expected: str) -> None:
    edited = ParsedCommand.of(spelled(command)).set({TP: 8})
    assert edited.text == spelled(expected)
    assert edited.get(TP) == "8"


@pytest.mark.parametrize(("command", "expected"), FORMS + PLACES + NESTED)
def test_setting_what_is_set_changes_nothing(command: str, expected: str) -> None:
    assert ParsedCommand.of(spelled(expected)).set({TP: 8}).text == spelled(expected)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("p --a-b 1 --c 2", "p --a-b 1 --c 2 --tp 8 --mbs 2"),
        ("p --a_b 1 --c 2", "p --a_b 1 --c 2 --_tp 8 --_mbs 2"),
        ("p --a_b 1 --c-d 2", "p --a_b 1 --c-d 2 --tp 8 --mbs 2"),
        ("p --a_b=1 --c_d=2 --e 3", "p --a_b=1 --c_d=2 --e 3 --_tp=8 --_mbs=2"),
        ("p --a=1 --b 2", "p --a=1 --b 2 --tp 8 --mbs 2"),
        ("p --tp", "p --tp 8 --mbs 2"),
        ("p --a=1 --flag", "p --a=1 --flag --tp=8 --mbs=2"),
        (
            "torchrun --nproc_per_node=8 --max_restarts=1 p.py",
            "torchrun --nproc_per_node=8 --max_restarts=1 p.py --tp 8 --mbs 2",
        ),
    ],
)
def test_added_options_follow_the_spelling_of_the_programs_own(command: str, expected: str) -> None:
    assert ParsedCommand.of(spelled(command)).set({TP: 8, MBS: 2}).text == spelled(expected)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "--k true"),
        (False, "--k false"),
        (1e-05, "--k 1e-05"),
        (0.1, "--k 0.1"),
        (-1, "--k=-1"),
        (-0.5, "--k=-0.5"),
        ("-x", "--k=-x"),
        ("full", "--k full"),
        ("a b", "--k 'a b'"),
        ("$HOME", "--k '$HOME'"),
        ("it's", "--k 'it'\"'\"'s'"),
        ("-it's", "--k='-it'\"'\"'s'"),
        ("", "--k ''"),
    ],
)
@pytest.mark.parametrize("command", ["python t.py", "python t.py --k", "python t.py --k old", "python t.py --k $OLD"])
def test_values_are_written_so_that_shell_and_argparse_read_them_back(value: Value, written: str, command: str) -> None:
    assert ParsedCommand.of(command).set({"--k": value}).text == f"python t.py {written}"


@pytest.mark.parametrize("value", ["a b", "it's", '"', "$x", "`x`", "\\", "a;b", "-1", ""])
@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'PROGRAM --k old'",
        'bash -c "PROGRAM --k old"',
        "bash -c \"bash -c 'PROGRAM'\"",
        "bash -c 'bash -c \"PROGRAM --k=old\"'",
        "bash -c PROGRAM\\ --k=old",
        "bash -c $'PROGRAM --k \\'old\\''",
    ],
)
def test_a_value_that_needs_quotes_survives_every_nesting(value: str, command: str, tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    edited = ParsedCommand.of(command.replace("PROGRAM", str(program))).set({"--k": value})
    printed = subprocess.run(["bash", "-c", edited.text], capture_output=True, check=True).stdout.decode()
    assert printed.split("\0")[:-1] in (["--k", value], [f"--k={value}"])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("p --a 1 --tp 4 --b 2", "p --a 1 --b 2"),
        ("p --tp 4", "p"),
        ("p --tp=4 x --_tp 2 y --tp", "p x y"),
        ("p '--tp' \"4\" x", "p x"),
        ("p --tp -1 -x", "p -x"),
        ("p --tp --b 2", "p --b 2"),
        ("p \\\n  --tp 4 \\\n  --b 2", "p \\\n  \\\n  --b 2"),
        ("p 1 --tp v>log", "p 1 >log"),
        ("bash -c \"p --tp '4' --b 2\"", 'bash -c "p --b 2"'),
        ("bash -c p\\ --tp\\ 4", "bash -c p"),
        ("p --other 4", "p --other 4"),
        ("accelerate launch --tp 1 p.py --tp 2", "accelerate launch --tp 1 p.py"),
    ],
)
def test_an_option_is_removed_with_its_value_wherever_it_stands(command: str, expected: str) -> None:
    assert ParsedCommand.of(spelled(command)).remove(TP).text == spelled(expected)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("p --a-b 1", "p --a-b 1 --sequence-parallel"),
        ("p --a_b=1 | tee log", "p --a_b=1 --sequence_parallel | tee log"),
        ("p --sequence-parallel x", "p --sequence-parallel x"),
        ("p --sequence_parallel true", "p --sequence_parallel true"),
        ("p --sequence_parallel=true", "p --sequence_parallel=true"),
        ("p '--sequence-parallel'", "p '--sequence-parallel'"),
        ("p -- --sequence-parallel", "p --sequence-parallel -- --sequence-parallel"),
    ],
)
def test_a_flag_is_added_unless_it_is_there(command: str, expected: str) -> None:
    assert ParsedCommand.of(command).add_flag("--sequence-parallel").text == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("p --lr 1", "1"),
        ("p --lr=1 --lr 2", "2"),
        ("p --lr 2 --lr=1", "1"),
        ("p --lr 'a b'", "a b"),
        ("p --lr $LR", "$LR"),
        ('p --lr="$LR"', "$LR"),
        ("p --lr", ""),
        ("p --l-r 1", None),
        ("p -- --lr 1", None),
        ("torchrun --lr 1 p.py", None),
        ("bash -c 'p --lr 1'", "1"),
        ("for x in 1; do p --lr 1; done", None),
    ],
)
def test_the_last_value_of_the_programs_own_option_is_read(command: str, expected: str | None) -> None:
    line = ParsedCommand.of(command)
    assert line.get("--lr") == expected
    assert line.has("--lr") is (expected is not None)


def test_the_documented_options_reach_a_real_argparse(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--seed', type=int)\n"
        "parser.add_argument('--micro-batch-size', type=int)\n"
        "parser.add_argument('--recompute-method')\n"
        "print(parser.parse_args())\n"
    )
    line = ParsedCommand.of(f"{sys.executable} {program} --micro-batch-size 1 2>&1 | cat")
    text = line.set({MBS: 2, "--recompute-method": "uniform", "--seed": -7}).text
    ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout == "Namespace(seed=-7, micro_batch_size=2, recompute_method='uniform')\n"


def test_a_command_is_its_text_and_nothing_else() -> None:
    line = ParsedCommand.of("python t.py")
    assert str(line) == line.text == "python t.py"
    assert line == ParsedCommand.of("python t.py") != line.set({TP: 8})
    assert len({line, ParsedCommand.of("python t.py")}) == 1
    assert line.set({}) is line


@pytest.mark.parametrize("feeder", ["lz4 -dc x.lz4", "rclone cat r:x", "aws s3 cp s3://x -", "sqlite3 d 'select 1'"])
def test_of_two_programs_that_may_train_in_one_pipe_none_is_edited_silently(feeder: str) -> None:
    with pytest.raises(CommandError, match="one program that trains"):
        ParsedCommand.of(f"{feeder} | python train.py --lr 3").set({"--lr": 4})
    for command in ("bash train.sh --lr 3 | python watch.py", "./trainer --lr 3 | python watch.py"):
        assert ParsedCommand.of(command).set({"--lr": 4}).text == command.replace("3", "4")


def test_values_are_written_as_programs_read_them() -> None:
    assert [plain_value(value) for value in (True, 1e-05, 8)] == ["true", "1e-05", "8"]


def test_overrides_are_read_as_hydra_does() -> None:
    assert ParsedCommand.of("python train.py F.yaml --x=1 model.tp=2 lr=1e-4").overrides == {
        "model.tp": "2",
        "lr": "1e-4",
    }


def test_overrides_are_replaced_or_added() -> None:
    assert (
        ParsedCommand.of("python train.py F.yaml tp=2 > log").override({"tp": 4, "sp": True}).text
        == "python train.py F.yaml tp=4 sp=true > log"
    )


def test_an_argument_is_replaced_also_behind_an_option() -> None:
    assert (
        ParsedCommand.of("python train.py a.yaml --also=a.yaml").with_argument("a.yaml", "b.yaml").text
        == "python train.py b.yaml --also=b.yaml"
    )


def test_the_output_file_of_an_inner_shell_is_found() -> None:
    assert ParsedCommand.of("bash -c 'python train.py > run.log'").output_file == "run.log"
