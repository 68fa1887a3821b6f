"""Recipes of NeMo Automodel 0.7.

What a run prints of its configuration is what its config_to_yaml_str returned for the options of a trial; the lines of
steps are those of log_train_metrics in recipes/llm/train_ft.py, behind those of its loggers.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError
from zenith_tune.presets.automodel.job import read_steps
from zenith_tune.presets.automodel.preset import AutomodelPreset
from zenith_tune.presets.base import recognised_preset
from zenith_tune.shell import ParsedCommand
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

COMMAND = "automodel sft.yaml --nproc-per-node 8"
RECIPE: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 8, "ckpt_every_steps": 1000, "num_epochs": 1},
    "dist_env": {"backend": "nccl", "timeout_minutes": 1},
    "model": {"pretrained_model_name_or_path": "meta-llama/Llama-3.1-8B"},
    "compile": {"enabled": False},
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1, "cp_size": 1},
    "packed_sequence": {"packed_sequence_size": 4096},
    "optimizer": {"betas": [0.9, 0.999], "lr": 1e-5},
}
STEP = (
    "2026-11-19 14:00:00 | INFO | root | step {} | epoch 0 | loss 1.8421 | grad_norm 2.5000 | lr 1.00e-05 | "
    "mem 41.50 GiB | tps {}({:.2f}/gpu) | num_label_tokens 30144\n"
)


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return path


def bound(command: str = COMMAND, **arguments: Any) -> AutomodelPreset:
    preset = AutomodelPreset(cluster="h100x8", **arguments)
    preset.bind(command)
    return preset


def point(preset: AutomodelPreset, **changes: Any) -> Params:
    own = preset.own_point(COMMAND)
    assert own is not None
    return {**own, **changes}


def options(text: str) -> dict[str, str]:
    words = ParsedCommand.of(text).arguments
    return {name[2:]: value for name, value in itertools.pairwise(words) if name.startswith("--")}


def log(rates: list[float], **sections: Any) -> str:
    steps = "".join(STEP.format(number, 8 * rate, rate) for number, rate in enumerate(rates))
    return f"cfg-path: sft.yaml\n{yaml.safe_dump(RECIPE | sections, sort_keys=False)}Model: Llama\n{steps}"


class TestContract(PresetContract):
    def make(self) -> AutomodelPreset:
        return bound()

    def command(self) -> str:
        return COMMAND


@pytest.mark.parametrize(
    "command",
    [
        COMMAND,
        "torchrun --nproc-per-node=8 -m nemo_automodel.cli.app sft.yaml",
        "automodel finetune llm -c sft.yaml",
        "torchrun --nproc-per-node 8 examples/llm_finetune/finetune.py --config sft.yaml",
    ],
)
def test_a_command_that_names_a_recipe_is_recognised(command: str) -> None:
    assert recognised_preset(command) == "automodel"


def test_a_recipe_that_trains_all_parameters_is_planned() -> None:
    preset = bound()
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)
    subject, layout = preset.subject(COMMAND), preset.layout(point(preset))
    assert (subject.model.name, subject.job.seq_len, subject.cluster.num_gpus) == ("llama3-8b", 4096, 8)
    assert (layout.micro_batch, layout.global_batch, layout.dp, layout.zero) == (8, 64, 8, 3)


def test_a_recipe_that_trains_adapters_is_searched_without_a_plan(recipe: Path) -> None:
    recipe.write_text(yaml.safe_dump(RECIPE | {"peft": {"dim": 8}}))
    with pytest.raises(UsageError, match="adapters"):
        bound().subject(COMMAND)


def test_a_point_is_options_that_win_over_the_file() -> None:
    preset = bound()
    params = point(preset, tp=2, checkpointing=True, mbs=4)
    assert preset.explain(params) is None
    trial = options(preset.apply_parameters(COMMAND, params))
    assert trial["step_scheduler.local_batch_size"] == "4" and trial["distributed.tp_size"] == "2"
    assert trial["distributed.activation_checkpointing"] == "true"
    assert trial["step_scheduler.max_steps"] == "20" and trial["checkpoint.enabled"] == "false"
    best = options(preset.result_command(COMMAND, params, Path("/study")))
    assert best.keys() == {
        "nproc-per-node",
        "step_scheduler.local_batch_size",
        "distributed.tp_size",
        "distributed.activation_checkpointing",
    }


def test_options_of_the_command_count_and_are_replaced() -> None:
    command = f"{COMMAND} --step_scheduler.local_batch_size=2 --distributed.activation_checkpointing true"
    preset = bound(command)
    assert preset.own_point(command) == {"tp": 1, "checkpointing": True, "mbs": 2}
    text = preset.result_command(command, point(preset, mbs=4), Path("/study"))
    assert text == command.replace("local_batch_size=2", "local_batch_size=4")


def test_the_log_of_steps_lies_in_the_trials_folder() -> None:
    text = bound().baseline_command(COMMAND)
    assert options(text)["checkpoint.checkpoint_dir"] == "{trial_folder}/checkpoints"


def test_a_tracker_of_the_recipe_is_off_in_trials(recipe: Path) -> None:
    assert "wandb.enable" not in options(bound().baseline_command(COMMAND))
    recipe.write_text(yaml.safe_dump(RECIPE | {"wandb": {"project": "mine"}}))
    assert options(bound().baseline_command(COMMAND))["wandb.enable"] == "false"


def test_the_speed_is_that_of_the_steps() -> None:
    preset = bound()
    text = log([900.0, 4000.0, 4010.0, 3990.0, 4000.0])
    logged = read_steps(text)
    assert [step.gpu_tokens_per_s for step in logged.steps] == [900, 4000, 4010, 3990, 4000]
    assert logged.peak_bytes == round(41.5 * 2**30)
    measured = preset.evaluator().measure(text, {"parameters": point(preset)})
    assert measured.value == pytest.approx(8 * 4000, rel=0.01)


def test_a_run_that_was_configured_otherwise_has_no_value() -> None:
    preset = bound()
    text = log([4000.0] * 5, step_scheduler=RECIPE["step_scheduler"] | {"local_batch_size": 4})
    assert preset.evaluator().measure(text, {"parameters": point(preset, mbs=4)}).value > 0
    with pytest.raises(OtherSettingsError, match="local_batch_size=4, where 2 was asked for"):
        preset.evaluator().measure(text, {"parameters": point(preset, mbs=2)})


def test_selective_recomputation_stays(recipe: Path) -> None:
    recipe.write_text(
        yaml.safe_dump(RECIPE | {"distributed": {"strategy": "fsdp2", "activation_checkpointing": "selective"}})
    )
    preset = bound()
    assert preset.get_search_space()["checkpointing"].grid(3) == [False]
    assert not any("checkpointing" in word for word in options(preset.apply_parameters(COMMAND, point(preset, mbs=4))))


@pytest.mark.parametrize("size", ["pp_size", "ep_size"])
def test_pipelines_and_experts_are_refused(recipe: Path, size: str) -> None:
    recipe.write_text(yaml.safe_dump(RECIPE | {"distributed": {"strategy": "fsdp2", size: 2}}))
    with pytest.raises(UsageError, match="without pipeline and expert"):
        bound()


def test_levers_are_options() -> None:
    preset = bound()
    assert [each.name for each in preset.levers(COMMAND, point(preset))] == ["compile"]
    assert {each.name for each in preset.levers(COMMAND, point(preset, tp=2))} == {"sequence_parallel", "compile"}
    text = preset.apply_parameters(COMMAND, {**point(preset), "compile": True})
    assert options(text)["compile.enabled"] == "true"
