from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.plan_runs import LLAMA, Plan, as_json, planning


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.mark.parametrize("emit", ["megatron", "ms-swift", "deepspeed", "accelerate"])
def test_every_format_is_printed_or_written(plan: Plan, tmp_path: Path, emit: str) -> None:
    shown = as_json(plan(*LLAMA, "--emit", emit, "--json"))
    done = plan(*LLAMA, "--emit", emit, "--output", str(tmp_path / "a folder"))
    (path,) = (tmp_path / "a folder").iterdir()
    assert path.read_text() == shown["emit"]["text"]
    assert path.name == shown["emit"]["file_name"] and f"written: {path}" in done.out
    assert (path.suffix == ".sh") == bool(path.stat().st_mode & 0o100)


def test_the_emitted_flags_are_those_of_the_best_layout(plan: Plan) -> None:
    shown = as_json(plan("--model", "llama3-70b", *LLAMA[2:], "--cluster", "h100x64", "--emit", "megatron", "--json"))
    layout = shown["best"][0]["layout"]
    assert f"--tensor-model-parallel-size {layout['tp']} " in shown["emit"]["text"]
    assert f"--micro-batch-size {layout['micro_batch']} " in shown["emit"]["text"]


def test_an_accelerate_file_is_yaml(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, "--emit", "accelerate", "--framework", "fsdp", "--json"))
    assert yaml.safe_load(shown["emit"]["text"])["distributed_type"] == "FSDP"


def test_an_output_folder_that_cannot_be_written_is_one_line(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = plan(*LLAMA, "--emit", "megatron", "--output", str(tmp_path / "file" / "folder"))
    assert done.code == 2 and len(done.err.splitlines()) == 1 and str(tmp_path / "file") in done.err


@pytest.mark.parametrize("more", [[], ["--explain", "TP2 PP2 mbs1 SP full Z1"]])
def test_without_a_folder_the_file_alone_is_on_stdout(plan: Plan, more: list[str]) -> None:
    done = plan(*LLAMA, "--emit", "megatron", *more)
    assert done.code == 0
    assert done.out.startswith("#!/usr/bin/env bash\n") and done.out.endswith('"$@"\n')
    assert "tok/s/GPU" in done.err and "note: " in done.err and "#!/usr" not in done.err


def test_what_cannot_be_written_leaves_stdout_empty(plan: Plan) -> None:
    done = plan("--model", "llama3-405b", *LLAMA[2:], "--emit", "megatron")
    assert done.code == 1 and done.out == "" and "memory" in done.err


@pytest.mark.parametrize("emit", ["megatron", "ms-swift", "deepspeed", "accelerate"])
def test_a_format_alone_picks_its_own_framework(plan: Plan, emit: str) -> None:
    shown = as_json(plan(*LLAMA, "--emit", emit, "--json"))
    assert shown["framework"] == ("deepspeed" if emit == "deepspeed" else "megatron")
