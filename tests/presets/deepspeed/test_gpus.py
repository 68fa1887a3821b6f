from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.presets.deepspeed.jobs import PLAIN, bound, command, write
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset
from zenith_tune.presets.shared.launched_gpus import started_gpus


@pytest.mark.parametrize(
    ("launcher", "num_gpus"),
    [
        ("deepspeed --num_gpus 4", 4),
        ("deepspeed --num_gpus=4 --num_nodes=2", 8),
        ("deepspeed --num_accelerators 3", 3),
        ("deepspeed --include localhost:0,2,3", 3),
        ("deepspeed -i localhost:0,1", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed", 2),
        ("python -m deepspeed.launcher.runner --num_gpus 2", 2),
        ("torchrun --nproc_per_node=4 --nnodes 2", 8),
        ("torchrun --nproc-per-node gpu", None),
        ("accelerate launch --num_processes 6", 6),
        ("WORLD_SIZE=16 srun python", 16),
        ("python", None),
    ],
)
def test_the_launcher_tells_how_many(launcher: str, num_gpus: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert started_gpus(f"{launcher} train.py --num_gpus 9 --deepspeed ds.json") == num_gpus


@pytest.mark.parametrize(
    ("more", "num_gpus"),
    [
        ("", 12),
        (" --num_nodes 1", 8),
        (" --num_gpus 2", 4),
        (" --include worker-0@worker-1:0,2", 10),
        (" --exclude worker-1:0", 11),
        (" --exclude worker-0", 4),
        (" --include worker-9", None),
    ],
)
def test_a_hostfile_has_the_number(tmp_path: Path, more: str, num_gpus: int | None) -> None:
    (tmp_path / "hosts").write_text("# two nodes\nworker-0 slots=8\n\nworker-1 slots=4\n")
    assert started_gpus(f"deepspeed --hostfile {tmp_path / 'hosts'}{more} train.py --deepspeed ds.json") == num_gpus


def test_a_broken_hostfile_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("worker-0 slots=8\nworker-1\n")
    with pytest.raises(UsageError, match=r"line 2 .*hosts.*'worker-1'"):
        started_gpus(f"deepspeed -H {tmp_path / 'hosts'} train.py")


def test_accelerates_file_has_the_number(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    assert started_gpus(f"accelerate launch --config_file {tmp_path / 'acc.yaml'} train.py") == 8


def test_ranks_that_share_a_model_are_no_data_parallel_ranks(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, {**PLAIN, "autotuning": {"mp_size": 2}})))
    assert preset.get_search_space()["mbs"].grid(9) == [1, 2, 4, 8, 16, 32]
    with pytest.raises(UsageError, match=r"mp_size.* 3 and 4"):
        bound(command(write(tmp_path, {**PLAIN, "autotuning": {"mp_size": 3}})))


@pytest.mark.parametrize(
    ("config", "text", "args", "named"),
    [
        (PLAIN, "deepspeed --num_gpus 4 train.py", {}, ("--deepspeed", "--deepspeed_config")),
        (PLAIN, "deepspeed --num_gpus 4 train.py --deepspeed_config no.json", {}, ("no.json",)),
        (PLAIN, "deepspeed --autotuning soon --num_gpus 4 train.py --deepspeed DS", {}, ("--autotuning",)),
        (PLAIN, "deepspeed --num_gpus 4 train.py --deepspeed DS", {"n_gpus": 2}, ("n_gpus", 2, 4)),
        (PLAIN, "deepspeed --num_gpus 5 train.py --deepspeed DS", {}, (5, 64)),
        ({}, "deepspeed --num_gpus 4 train.py --deepspeed DS", {}, ("train_batch_size", "--gbs 256")),
        (PLAIN, "python train.py --deepspeed DS", {}, ("--gpus 8",)),
        (
            {**PLAIN, "train_batch_size": [8, 16]},
            "deepspeed --num_gpus 4 train.py --deepspeed DS",
            {},
            ("train_batch_size", "[8, 16]"),
        ),
        (
            {**PLAIN, "autotuning": {"min_train_micro_batch_size_per_gpu": 99}},
            "deepspeed --num_gpus 4 train.py --deepspeed DS",
            {},
            (99, 16),
        ),
        (
            {**PLAIN, "autotuning": {"arg_mappings": ["--x"]}},
            "deepspeed --num_gpus 4 train.py --deepspeed DS",
            {},
            ("arg_mappings",),
        ),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    text: str,
    args: dict[str, int],
    named: tuple[object, ...],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no nvidia-smi
    path = write(tmp_path, config)
    with pytest.raises(UsageError) as error:
        bound(text.replace("DS", str(path)), **args)
    assert mentions(error.value, *named) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "bad", [{"n_gpus": 0}, {"gbs": 2**40}, {"metric": "speed"}, {"search": "stag"}, {"search": "+"}]
)
def test_bad_arguments_are_refused(bad: dict[str, int | str]) -> None:
    with pytest.raises(UsageError):
        DeepSpeedPreset(**bad)  # type: ignore[arg-type]


def test_without_a_command_it_says_so() -> None:
    with pytest.raises(UsageError, match="command"):
        DeepSpeedPreset().get_search_space()


def test_a_number_with_a_default_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NGPU", raising=False)
    command = "deepspeed --num_gpus ${NGPU:-4} train.py --deepspeed_config ds.json"
    assert started_gpus(command) == 4
    monkeypatch.setenv("NGPU", "2")
    assert started_gpus(command) == 2
    assert started_gpus(command.replace("NGPU:-4", "NGPU:-$(cat n)")) == 2
    assert started_gpus("torchrun --nproc-per-node $(nvidia-smi -L | wc -l) train.py") is None
