"""`zenithtune optimize --topology`: the file of one node is each node of the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command_runs import Run, running
from tests.describe.smi_samples import islands, matrix, uniform
from tests.presets.accelerate.jobs import write


@pytest.fixture
def optimize(capsys: pytest.CaptureFixture[str]) -> Run:
    return running("optimize", capsys)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Return a job of two machines with eight GPUs each, whose own tp is 4."""
    own = str(write(tmp_path, "MEGATRON_LM"))
    return ["--", "accelerate", "launch", "--config_file", own, "train.py", "--batch_size", "2"]


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node.txt"
    path.write_text(matrix(islands([2, 2, 2, 2], "NV12", "SYS")))
    return str(path)


def test_tensor_parallelism_stays_inside_the_islands_of_each_machine(
    optimize: Run, command: list[str], node: str
) -> None:
    grid = ("--dry-run", "--strategy", "grid", "--args", "search=tp")
    done = optimize(*grid, "--topology", node, *command)
    assert re.search(r"^note: NVLink .*\(0 1 \| 2 3 \| 4 5 \| 6 7\): .*within 2\b", done.out, re.MULTILINE)
    assert re.search(r"pruned +TP8\b.*\n? *.*tp .*within 2: ", done.out)
    without = optimize(*grid, "--args", "cluster=a100x16", *command)
    assert "within 2" not in without.out


def test_the_links_of_a_named_cluster_are_those_of_the_file(optimize: Run, command: list[str], node: str) -> None:
    args = "cluster=a100x16,model=llama2-7b,seq=2048"
    done = optimize("--dry-run", "--n-trials", "1", "--topology", node, "--args", args, *command)
    assert "llama2-7b on a100-80x16 as node.txt" in done.out


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("nothing", (), "GPU0"),
        (matrix(uniform(4, "NV4")), (), "8 GPUs"),
        (matrix(uniform(8, "NV4")), ("--args", "topology=x"), "--args topology="),
        (matrix(uniform(8, "NV4")), ("--preset", "demo"), "no argument 'topology'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    optimize: Run, command: list[str], node: str, text: str, more: tuple[str, ...], words: str
) -> None:
    Path(node).write_text(text)
    done = optimize("--dry-run", "--topology", node, *more, *command)
    assert done.code == 2 and words in done.err and done.err.count("\n") == 1
