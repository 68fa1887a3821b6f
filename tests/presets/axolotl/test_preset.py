from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.presets.trainer.runs import run
from zenith_tune.presets.axolotl.preset import AxolotlPreset
from zenith_tune.presets.base import recognised_preset
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

OWN = {"base_model": "m", "micro_batch_size": 4, "gradient_accumulation_steps": 2, "output_dir": "out"}
BATCH = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
POINT: Params = {"mbs": 1, "checkpointing": True}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lora.yml"
    path.write_text(yaml.safe_dump(OWN))
    return path


def bound(command: str) -> AxolotlPreset:
    preset = AxolotlPreset()
    preset.bind(command)
    return preset


def live(command: str, arguments: dict[str, Any] | None = None, **values: Any) -> AxolotlPreset:
    preset = bound(command)
    preset.read_baseline(run({**BATCH, **(arguments or {})}, **{"world": 1, "passes": 2, "samples": 8, **values}))
    return preset


class TestProgramContract(PresetContract):
    front = "CUDA_VISIBLE_DEVICES=0 axolotl train"

    @pytest.fixture(autouse=True)
    def _written(self, file: Path) -> None:
        self.file = file

    def make(self) -> AxolotlPreset:
        return bound(self.command())

    def command(self) -> str:
        return f"{self.front} {self.file} --learning-rate 1e-4"


class TestModuleContract(TestProgramContract):
    front = "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 -m axolotl.cli.train"


@pytest.mark.parametrize(
    "command",
    [
        "axolotl train F.yaml",
        "axolotl train F.yaml --launcher torchrun -- --nproc_per_node=2",
        "accelerate launch -m axolotl.cli.train F.yaml --micro_batch_size=2",
        "accelerate launch --use_fsdp -m axolotl.cli.train F.yaml",
        "python -m axolotl.cli.train F.yaml",
        "torchrun --nproc-per-node 2 -m axolotl.cli.train F.yaml",
    ],
)
def test_its_commands_are_recognised(command: str) -> None:
    assert recognised_preset(command) == "axolotl"


def test_other_uses_are_not() -> None:
    assert not AxolotlPreset.recognises("axolotl preprocess F.yaml")


def test_a_point_is_options_that_win_over_the_file(file: Path, tmp_path: Path) -> None:
    command = f"axolotl train {file} --launcher torchrun -- --nproc_per_node=2"
    preset = live(command, world=2, samples=16)
    assert preset.own_point(command) == {"mbs": 4, "checkpointing": False}
    assert preset.result_command(command, POINT, tmp_path) == (
        f"axolotl train {file} --launcher torchrun --micro-batch-size 1 --gradient-accumulation-steps 8"
        " --gradient-checkpointing true -- --nproc_per_node=2"
    )
    assert preset.result_files(POINT) == {}


def test_options_of_the_module_are_replaced(file: Path, tmp_path: Path) -> None:
    command = f"accelerate launch -m axolotl.cli.train {file} --micro_batch_size=4"
    best = live(command).result_command(command, POINT, tmp_path)
    assert best.startswith(command[:-1] + "1 ") and "--gradient_accumulation_steps=8" in best


def test_passes_that_follow_from_the_batch_are_not_written(file: Path, tmp_path: Path) -> None:
    file.write_text(yaml.safe_dump({"micro_batch_size": 4, "batch_size": 8}))
    command = f"axolotl train {file}"
    assert "accumulation" not in live(command).result_command(command, POINT, tmp_path)


def test_trials_write_into_their_own_folder(file: Path) -> None:
    command = f"axolotl train {file}"
    preset = bound(command)
    for text in (preset.baseline_command(command), preset.apply_parameters(command, POINT)):
        assert "--output-dir '{trial_folder}/output'" in text


def test_ranks_are_those_of_its_launcher(file: Path) -> None:
    for more in ("--num-processes 4", "-- --num_processes 4", "--launcher torchrun -- --nproc_per_node=4"):
        assert bound(f"axolotl train {file} {more}").layout(POINT).num_gpus == 4


def test_levers_that_it_has_no_key_for_are_not_offered(file: Path, tmp_path: Path) -> None:
    command = f"axolotl train {file}"
    off = {"optim": "adamw_torch", "use_liger_kernel": False, "torch_compile": False, "dataloader_num_workers": 0}
    preset = live(command, off, packages=["liger_kernel"])
    offered = {lever.label for lever in preset.levers(command, POINT)}
    assert offered == {"compile", "attention=flex", "fused_optimizer", "allocator=expandable"}
    best = preset.result_command(command, {**POINT, "fused_optimizer": True}, tmp_path)
    assert "--optimizer adamw_torch_fused" in best


def test_rows_of_packed_samples_count_as_micro_batches(file: Path) -> None:
    command = f"axolotl train {file}"
    packed = {"sample_packing": True}
    preset = live(command, packed, samples=2)  # one row a pass
    small = {**BATCH, **packed, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    log = run({**small, "gradient_checkpointing": True}, world=1, passes=8, samples=8)
    assert preset.evaluator().measure(log, {"parameters": POINT}).value == 8.0
