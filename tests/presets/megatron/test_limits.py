"""Texts and numbers without measure: each is read or refused at once, in one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.mentions import mentions
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.presets.megatron.job import MegatronLmOverrides, read_job
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.shell.scripts.interpreter import MAX_BYTES

SOON = 15.0
"""Seconds of this process; without a limit each of these takes minutes, or all the memory."""
MANY = "9" * 5000
SHAPE = (
    "--num-layers 16 --hidden-size 2048 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 16 --vocab-size 32000"
)
COMMAND = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE}"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--num-layers 99999999999", ("--num-layers", 10000, 99999999999)),
        ("--global-batch-size 99999999999999999999", ("--global-batch-size", 10000000)),
        ("--seq-length 99999999999", ("--seq-length", 100000000)),
        ("--hidden-size 99999999968", ("--hidden-size", 1000000)),
        ("--micro-batch-size 99999999999", ("--micro-batch-size",)),
        (f"--num-layers {MANY}", ("--num-layers",)),
        ("--num-experts 8 --moe-layer-freq '([]*99999999999999999999)'", ("--moe-layer-freq",)),
        (f"--num-experts 8 --moe-layer-freq {MANY}", ("--moe-layer-freq",)),
        (f"--num-experts 8 --moe-layer-freq '[1]*{MANY}'", ("--moe-layer-freq",)),
        (f"--pipeline-model-parallel-layout 'Et|(t|)*{MANY}L'", ("--pipeline-model-parallel-layout",)),
        ("--pipeline-model-parallel-layout 'Et|(t|)*999999999L'", ("--pipeline-model-parallel-layout",)),
    ],
)
def test_a_number_that_no_job_has_is_refused_in_one_line(options: str, named: tuple[object, ...]) -> None:
    start = time.process_time()
    with pytest.raises(UsageError) as caught:
        MegatronLmPreset(cluster="h100x8").bind(f"{COMMAND} {options}")
    assert mentions(caught.value, *named)
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)
    assert time.process_time() - start < SOON


@pytest.mark.parametrize("count", ["99999999999", MANY, "²"])
def test_gpus_without_measure_are_refused_or_asked_for(count: str) -> None:
    with pytest.raises(UsageError, match=r"number of GPUs|n_gpus"):
        read_job(COMMAND.replace("node 8", f"node {count}"), MegatronLmOverrides())


@pytest.mark.parametrize("name", ["n_gpus", "gbs", "vocab", "mbs_max", "tp_max"])
def test_what_is_given_beside_the_command_has_limits_too(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} .*\b10+\b"):
        MegatronLmPreset(**{name: 10**20})  # type: ignore[arg-type]


def test_the_largest_numbers_that_are_taken_make_a_space_at_once() -> None:
    options = "--num-layers 10000 --global-batch-size 10000000 --seq-length 100000000"
    preset = MegatronLmPreset(cluster="h100x8", mbs_max=10)
    start = time.process_time()
    preset.bind(f"{COMMAND} {options}")
    assert preset.get_search_space()["mbs"].contains(10)
    assert time.process_time() - start < SOON


UNREADABLE = {
    "20000 commands": "true\n" * 30_000,
    "256 KiB": "# a comment\n" * 30_000,
}


@pytest.mark.parametrize("limit", list(UNREADABLE))
def test_a_script_that_is_too_long_is_unreadable_and_says_so(limit: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{UNREADABLE[limit]}\n{COMMAND}\n")
    start = time.process_time()
    with pytest.raises(UsageError) as caught:
        read_job(f"bash {script}", MegatronLmOverrides())
    assert mentions(caught.value.problem, limit) and "--preset" in caught.value.hint
    assert time.process_time() - start < SOON


def test_scripts_that_call_many_others_end(tmp_path: Path) -> None:
    for level in range(7):
        (tmp_path / f"a{level}.sh").write_text(f"bash {tmp_path}/a{level + 1}.sh\n" * 20)
    start = time.process_time()
    with pytest.raises(UsageError, match=r"20000 commands.*--preset"):
        read_job(f"bash {tmp_path}/a0.sh", MegatronLmOverrides())
    assert time.process_time() - start < SOON


def test_a_sourced_file_that_is_cut_leaves_what_it_may_set_open(tmp_path: Path) -> None:
    (tmp_path / "long.sh").write_text("PP=2\n" + "#" * MAX_BYTES)
    (tmp_path / "train.sh").write_text(f"source {tmp_path}/long.sh\n{COMMAND} --pp $PP\n")
    run = find_pretrain_run(f"bash {tmp_path}/train.sh", {})
    assert run is not None and run.arguments[-1] == "$PP"


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\n" + 'A="$A$A"\n' * 40,
        "A=(x y)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        'echo "' + " #" * 100_000 + '"',
        "A=$((" + "(" * 500 + "1" + ")" * 500 + "))",
        "A=$((1" + "*99999999" * 100 + "))",
        f"A=(1 2); C=${{A[@]:{MANY}}} D=${{{MANY}}} E=${{A[{MANY}]}}",
        f"if [ {MANY} -gt 1 ]; then A=1; fi",
        f"[ x = y ] && shift {MANY}",
    ],
)
def test_a_run_behind_what_grows_without_measure_is_found_at_once(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'{text}\n{COMMAND} "$@"\n')
    start = time.process_time()
    run = find_pretrain_run(f"bash {script}", {})
    assert run is not None and run.added_at == len(SHAPE.split())
    assert time.process_time() - start < SOON
