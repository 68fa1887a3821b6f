from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.shell.scripts.runs import ProgramRun

PLAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16"
FAKE_TORCHRUN = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$SEEN"
"""


def found(command: str, environment: dict[str, str] | None = None) -> ProgramRun:
    run = find_pretrain_run(command, environment)
    assert run is not None
    return run


SCRIPTS = {
    "lists": """
        #!/bin/bash
        # It's a comment with an apostrophe, and ( a bracket
        GPUS_PER_NODE=8
        DISTRIBUTED_ARGS=( --nproc_per_node $GPUS_PER_NODE --nnodes 1 )
        MODEL_ARGS=(
            --num-layers 32   # don't ask (why)
            --hidden-size "4096"
            # --left-out 1
            --split '99,1,0'
        )
        MODEL_ARGS+=( "--vocab-size 128256" --name "a b" )
        torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
            ${MODEL_ARGS[@]} \\
            --save "$1/${2}" "${MODEL_ARGS[@]}" "$@"
    """,
    "defaults": """
        TP=${TP:-4}; PP=${PP:-"2"}
        : ${CP:=8}
        WORLD_SIZE=$(($TP*${PP} + 8/CP - 1 % 5))
        export NAME=run_$TP-"$PP"
        ARGS="--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
        ARGS+=" --context-parallel-size ${CP}"
        torchrun --nproc-per-node $WORLD_SIZE pretrain_gpt.py $ARGS --name $NAME ${EMPTY} "${EMPTY}" ${FLAG:+--flag} \\
            "${@:2}" "${NONE[@]}" ${NONE[@]}
    """,
    "conditions": """
        DTYPE="fp8"
        EXTRA=()
        if [[ "$DTYPE" == "fp8" ]]; then
            EXTRA+=("--fp8-format hybrid")
        elif [ "$DTYPE" = bf16 ]; then
            EXTRA+=(--never)
        else
            EXTRA=(--never-either)
        fi
        if [ -z "$UNSET" ] || [ -n "$UNSET" ]; then LEVEL=1; else LEVEL=2; fi
        if [ $LEVEL -gt 1 ]; then EXTRA+=(--no); else if ! [ "$1" != ckpt ]; then EXTRA+=(--nested); fi; fi
        [ -z "$UNSET" ] && MORE=--more
        [ -n "$UNSET" ] && MORE=--less
        [ $LEVEL -eq 1 ] || MORE=--wrong
        torchrun pretrain_gpt.py "${EXTRA[@]}" ${EXTRA[0]} $MORE $#
    """,
    "indirect": """
        set -euo pipefail
        cmd="torchrun --nproc-per-node 2 pretrain_gpt.py --data-path $1 --x 'y'"
        shift
        echo "running $cmd pretrain_gpt.py"
        eval "$cmd $*"
    """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_a_script_is_read_as_bash_runs_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, torchrun = tmp_path / "train.sh", tmp_path / "torchrun"
    script.write_text(SCRIPTS[name])
    torchrun.write_text(FAKE_TORCHRUN)
    torchrun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    arguments = ["ckpt", "logs", "--added", "two words"]
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, str(script), *arguments], env=environment, check=True, capture_output=True)
    ran = (tmp_path / "seen").read_text().split("\0")[:-1]
    run = found(f"bash {script} ckpt logs --added 'two words'", environment)
    assert [*run.launcher[1:], run.program, *run.arguments] == ran


def test_where_what_is_added_arrives_is_known(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    for text, place in (
        ('torchrun pretrain_gpt.py --a 1 "$@"', 3),
        ('torchrun pretrain_gpt.py "$@" --a 1', 1),
        ("torchrun pretrain_gpt.py --a 1 $*", 3),
        ('torchrun pretrain_gpt.py --a 1 "${@:2}"', 2),
        ('torchrun pretrain_gpt.py --a 1 "${@:3}"', None),  # which drops the first of what is added
        ('shift; torchrun pretrain_gpt.py --a 1 "$@"', 2),
        ('ARGS=(--a 1 "$@"); torchrun pretrain_gpt.py ${ARGS[@]}', 3),
        ('REST="$@"; torchrun pretrain_gpt.py --a 1 $REST', 3),
        ('launch() { torchrun pretrain_gpt.py --a 1 "$@"; }; launch "$@"', 3),
        ("torchrun pretrain_gpt.py --a 1", None),
        ("torchrun pretrain_gpt.py --a $1", None),
    ):
        script.write_text(text)
        assert found(f"bash {script} ckpt").added_at == place, text
    assert found(PLAIN).added_at is None and found(PLAIN).script == ""


def test_a_script_that_starts_another_or_sources_one_is_followed(tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text("MODEL_ARGS=(--num-layers 4)\n")
    (tmp_path / "inner.sh").write_text('source model.sh; torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --tp $TP "$@"\n')
    (tmp_path / "outer.sh").write_text('export TP=2\nbash inner.sh --seed 1 "$@"\n')
    run = found(f"cd {tmp_path} && bash outer.sh --lr 1")
    assert run.arguments == ("--num-layers", "4", "--tp", "2", "--seed", "1", "--lr", "1")
    assert (run.script, run.added_at) == ("outer.sh", 8)


def test_variables_in_front_of_a_script_reach_it(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --tp ${TP:-1} --pp ${PP:-1} --cp $CP")
    run = found(f"TP=4 bash {script}", {"CP": "2"})
    assert run.arguments == ("--tp", "4", "--pp", "1", "--cp", "2")
    assert run.variables["TP"] == "4" and "CP" not in run.variables


def test_what_only_a_shell_knows_stays_as_it_is_written(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "N=$(nvidia-smi -L | wc -l); LIST=(--a)\nfor i in 1 2; do LIST+=(--b $i); TP=$i; done\n"
        'case "$X" in a) PP=2;; esac\ntorchrun --nproc-per-node $N pretrain_gpt.py --tp $TP --pp $PP ${LIST[@]}'
    )
    run = found(f"bash {script}")
    assert " ".join(run.launcher) == "torchrun --nproc-per-node $(nvidia-smi -L | wc -l)"
    assert run.arguments == ("--tp", "$TP", "--pp", "$PP", "--a")
    assert run.extended == ("LIST",)


def test_a_file_that_cannot_be_read_leaves_what_it_may_set_open(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("TP=2; source nowhere.sh; torchrun pretrain_gpt.py --tp $TP --pp $PP --hidden ${H:-64}")
    assert found(f"bash {script}").arguments == ("--tp", "2", "--pp", "$PP", "--hidden", "${H:-64}")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "bash nowhere.sh",
        "python train.py --script pretrain.py",
        "echo pretrain_gpt.py",
        "ls /opt/pretrain_gpt.py",
        "[ -f pretrain_gpt.py ] && python train.py",
        "python not_pretrain_gpt.py",
        "torchrun 'unclosed pretrain_gpt.py",
        "megatron sft --model x",
        "bash /dev/zero",
    ],
)
def test_a_command_that_runs_none_has_none(command: str) -> None:
    assert find_pretrain_run(command) is None


@pytest.mark.parametrize(
    "command",
    [
        PLAIN,
        "cd run && CUDA_VISIBLE_DEVICES=0 python -u /opt/Megatron-LM/pretrain_gpt.py --bf16 > log 2>&1",
        "bash -c 'export A=1; torchrun pretrain_llama.py --bf16'",
        "nohup env A=1 torchrun ./pretrain_gpt.py --bf16 | tee log",
        "[ -d data ] || mkdir data; torchrun pretrain_gpt.py --bf16",
        "if true; then torchrun pretrain_gpt.py --bf16; else torchrun pretrain_gpt.py --fp16; fi",
    ],
)
def test_a_run_is_found_behind_whatever_stands_before_it(command: str) -> None:
    assert found(command).arguments == ("--bf16",)


def test_scripts_that_call_one_another_in_a_circle_end(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"bash {script}\n")
    assert find_pretrain_run(f"bash {script}") is None


SHELL_TEXT = r"""torchrun pretrain_gpt.py if then fi else A=( ) "$@" ${A[@]} $((1/0)) ; $A A=1 A+=(2) && || ! [ ] [[ ]]
    -z case in esac ' " ${A:- } eval bash -c cd shift unset # \ ` $( { ${@:3} == ${#A} local for do done"""


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from([*SHELL_TEXT.split(), "\n"])))
def test_no_text_makes_it_fail_or_find_a_program_that_is_not_there(words: list[str]) -> None:
    for text in (" ".join(words), "".join(words)):
        run = find_pretrain_run(text, {})
        assert run is None or "pretrain_gpt.py" in text
