"""Tensor parallelism of a job through Accelerate stays inside what NVLink joins, where the machines are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.describe.fake_smi import install, install_machine
from tests.describe.smi_samples import islands, listed, matrix, uniform
from tests.mentions import mentions
from tests.presets.accelerate.jobs import bound, command, point, write
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.preset import AcceleratePreset

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def job(folder: Path, cluster: str | None = None) -> AcceleratePreset:
    """Return a job of two machines with eight GPUs each, whose own tp is 4."""
    return bound(command(write(folder, "MEGATRON_LM")), cluster=cluster)


def tried(preset: AcceleratePreset) -> set[int]:
    points = [point(preset, tp=tp, pp=1, sp=False, mbs=1) for tp in (1, 2, 4, 8)]
    return {int(each["tp"]) for each in points if preset.explain(each) is None}


def test_pairs_leave_two_and_what_the_job_itself_has(tmp_path: Path, smi: Path) -> None:
    install_machine(smi, listed(A100, 8), matrix(islands([2, 2, 2, 2], "NV12", "SYS")))
    preset = job(tmp_path)
    assert tried(preset) == {1, 2, 4}
    note = preset.notes("")[-1]
    assert mentions(note, "NVLink", "2 GPUs")
    assert mentions(preset.explain(point(preset, tp=8, pp=1, sp=True)), "tp", 2, note)


def test_without_nvlink_it_is_avoided(tmp_path: Path, smi: Path) -> None:
    install_machine(smi, listed(A100, 8), matrix(uniform(8, "PHB")))
    preset = job(tmp_path)
    assert tried(preset) == {1, 4}
    assert mentions(preset.notes("")[-1], "NVLink", "avoided")
    assert tried(job(tmp_path, cluster="l40sx16")) == {1, 4}


def test_a_machine_that_is_all_joined_changes_nothing(tmp_path: Path, smi: Path) -> None:
    install_machine(smi, listed(A100, 8), matrix(uniform(8, "NV12"), nics=8))
    preset = job(tmp_path)
    assert tried(preset) == {1, 2, 4, 8} and not any("NVLink" in note for note in preset.notes(""))
    assert tried(job(tmp_path, cluster="gb200x16")) == {1, 2, 4, 8}


@pytest.mark.parametrize("script", [None, "exit 9", "echo gibberish", "kill -9 $$"])
def test_no_nvidia_smi_or_one_that_fails_changes_nothing(tmp_path: Path, smi: Path, script: str | None) -> None:
    if script is not None:
        install(smi, script)
    preset = job(tmp_path)
    assert tried(preset) == {1, 2, 4, 8} and not any("NVLink" in note for note in preset.notes(""))


def test_a_login_node_with_a_gpu_or_two_is_not_where_the_job_runs(tmp_path: Path, smi: Path) -> None:
    install_machine(smi, listed("NVIDIA L40S", 2), matrix(uniform(2, "SYS")))
    assert tried(job(tmp_path)) == {1, 2, 4, 8}


def test_nvidia_smi_is_asked_once(tmp_path: Path, smi: Path) -> None:
    count = tmp_path / "asked"
    install(smi, f"echo x >> '{count}'; exit 9")
    preset = job(tmp_path)
    assert [tried(preset), tried(preset), len(preset.notes("")) > 0] == [{1, 2, 4, 8}, {1, 2, 4, 8}, True]
    assert count.read_text() == "x\n"


PAIRS = matrix(islands([2, 2, 2, 2], "NV12", "SYS"))


def test_a_file_of_one_machine_is_each_machine_of_the_job(tmp_path: Path, smi: Path) -> None:
    node = tmp_path / "node.txt"
    node.write_text(f"{listed(A100, 8)}\n{PAIRS}")
    preset = job(tmp_path, cluster=str(node))
    assert tried(preset) == {1, 2, 4}
    planned = bound(command(write(tmp_path, "MEGATRON_LM")), cluster=str(node), model="llama2-7b", seq=2048)
    machines = planned.subject("").cluster
    assert (machines.num_gpus, machines.gpus_per_node, machines.fast_domain) == (16, 8, 2)


@pytest.mark.parametrize("head", ["", listed(A100, 8) + "\n"], ids=["matrix alone", "with the list"])
def test_a_topology_is_that_of_each_machine_and_needs_no_nvidia_smi(tmp_path: Path, smi: Path, head: str) -> None:
    node = tmp_path / "node.txt"
    node.write_text(head + PAIRS)
    own = command(write(tmp_path, "MEGATRON_LM"))
    preset = bound(own, topology=str(node))
    assert tried(preset) == {1, 2, 4}
    assert mentions(preset.notes("")[-1], "NVLink", "2 GPUs", "(0 1 | 2 3 | 4 5 | 6 7)")
    planned = bound(own, topology=str(node), cluster=None if head else "a100x16", model="llama2-7b", seq=2048)
    assert (planned.subject("").cluster.num_gpus, planned.subject("").cluster.fast_domain) == (16, 2)


def test_a_topology_with_fewer_gpus_than_the_job_takes_of_a_machine_is_refused(tmp_path: Path, smi: Path) -> None:
    node = tmp_path / "node.txt"
    node.write_text(matrix(uniform(4, "NV4")))
    with pytest.raises(UsageError, match=r"--topology.* 8 .* has 4"):
        bound(command(write(tmp_path, "MEGATRON_LM")), topology=str(node)).notes("")


def test_a_cluster_that_is_named_and_cannot_be_is_not_passed_over(tmp_path: Path, smi: Path) -> None:
    with pytest.raises(UsageError, match=r"16 GPUs.*a100-80x8"):
        job(tmp_path, cluster="a100x8").notes("")
