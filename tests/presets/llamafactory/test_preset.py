from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.presets.trainer.runs import run
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.llamafactory.preset import LlamaFactoryPreset
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

BATCH = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
OPTIONS = "llamafactory-cli train --stage sft --finetuning_type full --per_device_train_batch_size 8 --output_dir out"
OFF: Params = {"mbs": 4, "checkpointing": False}
LEVERED = {"optim": "adamw_torch", "use_liger_kernel": False, "torch_compile": False, "padding_free": False}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump({"stage": "sft", "finetuning_type": "lora", "output_dir": "out", **BATCH}))
    return path


def live(command: str, arguments: dict[str, Any] | None = None, **values: Any) -> LlamaFactoryPreset:
    """Return a preset that has seen a run, which recomputes as LLaMA-Factory does by default."""
    preset = LlamaFactoryPreset()
    preset.bind(command)
    usual = {"world": 1, "checkpointing": True, "passes": 2, "samples": 8}
    preset.read_baseline(run({**BATCH, **(arguments or {})}, **{**usual, **values}))
    return preset


class TestFileContract(PresetContract):
    @pytest.fixture(autouse=True)
    def _written(self, file: Path) -> None:
        self.text = f"FORCE_TORCHRUN=1 llamafactory-cli train {file} learning_rate=1e-4"

    def make(self) -> LlamaFactoryPreset:
        preset = LlamaFactoryPreset()
        preset.bind(self.command())
        return preset

    def command(self) -> str:
        return self.text


class TestOptionsContract(TestFileContract):
    def command(self) -> str:
        return f"FORCE_TORCHRUN=1 {OPTIONS}"


@pytest.mark.parametrize(
    "command",
    [
        "llamafactory-cli train F.yaml",
        "lmf train F.yaml bf16=true",
        "FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train F.yaml",
        "python -m llamafactory.cli train F.yaml",
        OPTIONS,
        OPTIONS.replace("llamafactory-cli train", "torchrun --nproc-per-node 2 src/train.py"),
    ],
)
def test_its_commands_are_recognised(command: str) -> None:
    assert recognised_preset(command) == "llamafactory"


def test_its_own_script_is_known_by_its_file(file: Path) -> None:
    assert recognised_preset(f"torchrun --nproc-per-node 2 src/train.py {file} bf16=true") == "llamafactory"
    file.write_text("per_device_train_batch_size: 4\n")
    assert recognised_preset(f"python train.py {file}") == "trainer"


@pytest.mark.parametrize("command", ["llamafactory-cli export F.yaml", "USE_V1=1 llamafactory-cli train F.yaml"])
def test_other_uses_and_engines_are_not(command: str) -> None:
    assert not LlamaFactoryPreset.recognises(command)


def test_a_point_is_overrides_behind_the_file_and_the_best_command_is_nothing_else(file: Path, tmp_path: Path) -> None:
    command = f"llamafactory-cli train {file} gradient_accumulation_steps=2"
    preset = live(command)
    assert preset.own_point(command) == {"mbs": 4, "checkpointing": True}
    best = preset.result_command(command, {"mbs": 8, "checkpointing": False}, tmp_path)
    assert best == (
        f"llamafactory-cli train {file} gradient_accumulation_steps=1"
        " per_device_train_batch_size=8 disable_gradient_checkpointing=true"
    )
    assert preset.result_files(OFF) == {}
    assert preset.result_command(command, {"mbs": 4, "checkpointing": True}, tmp_path) == command


def test_a_point_is_options_where_there_is_no_file(tmp_path: Path) -> None:
    preset = live(OPTIONS, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}, passes=1)
    best = preset.result_command(OPTIONS, OFF, tmp_path)
    assert best.startswith(OPTIONS.replace("size 8", "size 4"))
    assert "--disable_gradient_checkpointing true" in best and "--gradient_accumulation_steps 2" in best


def test_checkpointing_that_both_switches_turn_on_is_turned_off_by_both(file: Path, tmp_path: Path) -> None:
    command = f"llamafactory-cli train {file} gradient_checkpointing=true"
    best = live(command, {"gradient_checkpointing": True}).result_command(command, OFF, tmp_path)
    assert best.endswith("gradient_checkpointing=false disable_gradient_checkpointing=true")


def test_checkpointing_is_proven_by_the_model_itself(file: Path) -> None:
    preset = live(f"llamafactory-cli train {file}")
    evaluator = preset.evaluator()
    for is_on in (True, False):
        log = run(BATCH, world=1, passes=2, samples=8, checkpointing=is_on)
        point: Params = {"mbs": 4, "checkpointing": is_on}
        assert evaluator.measure(log, {"parameters": point}).value == 8.0
        with pytest.raises(OtherSettingsError):
            evaluator.measure(log, {"parameters": {**point, "checkpointing": not is_on}})


def test_its_levers_have_its_names(file: Path, tmp_path: Path) -> None:
    command = f"llamafactory-cli train {file}"
    preset = live(command, LEVERED, packages=["liger_kernel", "flash_attn"])
    offered = {lever.name for lever in preset.levers(command, OFF)}
    assert {"liger", "compile", "fused_optimizer"} <= offered and "padding_free" not in offered
    point: Params = {**OFF, "liger": True, "fused_optimizer": True, "attention": "flash2"}
    words = preset.result_command(command, point, tmp_path).split()
    assert {"enable_liger_kernel=true", "optim=adamw_torch_fused", "flash_attn=fa2"} <= set(words)
    log = run({**BATCH, "optim": "adamw_torch_fused"}, world=1, passes=2, samples=8, attention="flash_attention_2")
    assert preset.evaluator().measure(log, {"parameters": point}).value == 8.0, "its Trainer does not know of Liger"
    has_it = live(f"{command} enable_liger_kernel=true", LEVERED, packages=["liger_kernel"])
    assert "liger" not in {lever.name for lever in has_it.levers(command, OFF)}


def test_the_ranks_that_it_starts_itself_are_counted(file: Path) -> None:
    preset = LlamaFactoryPreset()
    command = f"FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train {file}"
    preset.bind(command)
    assert preset.layout(OFF).num_gpus == 8 and preset.resources(command).gpus_per_node == 8
