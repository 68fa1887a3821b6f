"""Jobs of nanotron, by configurations as its examples have them.

Lines of steps are those of its LoggerWriter (0.4 and main of 2026-08), behind what torchrun and its logger put before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.nanotron.job import read_steps
from zenith_tune.presets.nanotron.preset import NanotronPreset
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

COMMAND = "torchrun --nproc_per_node=8 run_train.py --config-file llama.yaml"
CONFIG: dict[str, Any] = {
    "checkpoints": {"checkpoint_interval": 100, "checkpoints_path": "checkpoints", "resume_checkpoint_path": None},
    "general": {"project": "pretraining", "run": "llama", "seed": 42},
    "logging": {"iteration_step_info_interval": 10},
    "model": {
        "ddp_bucket_cap_mb": 25,
        "dtype": "bfloat16",
        "model_config": {
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "is_llama_config": True,
            "max_position_embeddings": 4096,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "vocab_size": 128256,
        },
    },
    "optimizer": {
        "learning_rate_scheduler": {"learning_rate": 3e-4, "lr_warmup_steps": 2000, "lr_warmup_style": "linear"},
        "optimizer_factory": {"name": "adamW", "torch_adam_is_fused": False},
        "zero_stage": 0,
    },
    "parallelism": {"dp": 1, "pp": 2, "pp_engine": "1f1b", "tp": 4, "tp_mode": "REDUCE_SCATTER"},
    "tokens": {
        "batch_accumulation_per_replica": 32,
        "micro_batch_size": 2,
        "sequence_length": 4096,
        "train_steps": 10000,
    },
}
LOGGED = "[default0]:01/25/2024 15:26:17 [INFO|DP=0|PP=0|TP=0|ip-26-0-160-225]: iteration: {} / 20 | "
OLD_STEP = (
    "consumed_tokens: 262K | elapsed_time_per_iteration_ms: {} | tokens_per_sec: 194K | tokens_per_sec_per_gpu: 24.2K"
    " | global_batch_size: 64 | lm_loss: 11.9 | lr: 0.0001 | model_tflops_per_gpu: 211 | hardware_tflops_per_gpu: 211"
    " | grad_norm: 1.37 | cuda_memory_allocated: 6.97G | cuda_max_memory_reserved: 43.6G | hd_total_memory_tb: 312G\n"
)
NEW_STEP = (
    "consumed_tokens: 262K | time_per_iteration_ms: {} | tokens_per_sec: 194K | tokens_per_sec_per_gpu: 24.2K"
    " | global_batch_size: 262K | grad_norm: 1.37 | lm_loss: 11.9 | lr: 0.0001 | model_tflops_per_gpu: 211"
    " | eta: 0:00:24\n"
)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "llama.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def bound(**arguments: Any) -> NanotronPreset:
    preset = NanotronPreset(cluster="h100x8", **arguments)
    preset.bind(COMMAND)
    return preset


def point(preset: NanotronPreset, **changes: Any) -> Params:
    own = preset.own_point(COMMAND)
    assert own is not None
    return {**own, **changes}


def log(step: str, times: list[str]) -> str:
    return "".join(LOGGED.format(number) + step.format(each) for number, each in enumerate(times, start=1))


class TestContract(PresetContract):
    def make(self) -> NanotronPreset:
        return bound()

    def command(self) -> str:
        return COMMAND


def test_a_command_that_names_a_configuration_of_nanotron_is_recognised(tmp_path: Path) -> None:
    assert recognised_preset(COMMAND) == "nanotron"
    (tmp_path / "other.yaml").write_text("parallelism: {dp: 1}\n")
    assert recognised_preset(COMMAND.replace("llama", "other")) != "nanotron"


def test_the_layouts_of_a_llama_are_planned() -> None:
    preset = bound()
    assert isinstance(preset.get_recommended_strategy(), GuidedStrategy)
    assert preset.subject(COMMAND).model.num_params == 8_030_261_248
    layout = preset.layout(point(preset))
    assert (layout.tp, layout.pp, layout.dp, layout.global_batch, layout.sequence_parallel) == (4, 2, 1, 64, True)


def test_a_point_is_a_copy_of_the_file_that_keeps_the_global_batch(config: Path) -> None:
    preset = bound()
    params = point(preset, tp=2, pp=1, mbs=4, zero=1)
    assert preset.explain(params) is None
    assert preset.apply_parameters(COMMAND, params) == COMMAND.replace("llama", "{trial_folder}/llama")
    trial = yaml.safe_load(preset.files(params)["llama.yaml"])
    assert trial["parallelism"] == CONFIG["parallelism"] | {"dp": 4, "tp": 2, "pp": 1}
    assert (trial["tokens"]["micro_batch_size"], trial["tokens"]["batch_accumulation_per_replica"]) == (4, 4)
    assert trial["optimizer"]["zero_stage"] == 1
    best = yaml.safe_load(preset.result_files(params)["llama.yaml"])
    assert best["tokens"]["train_steps"] == 10000 and best["checkpoints"] == CONFIG["checkpoints"]
    assert best["parallelism"] == trial["parallelism"]
    assert preset.result_command(COMMAND, params, Path("/study")) == COMMAND.replace("llama", "/study/llama")
    assert yaml.safe_load(config.read_text()) == CONFIG


def test_a_trial_is_short_logs_each_step_and_saves_nothing() -> None:
    preset = bound(steps=10)
    for files in (preset.baseline_files(), preset.files(point(preset, mbs=1))):
        trial = yaml.safe_load(files["llama.yaml"])
        assert trial["tokens"]["train_steps"] == 10 and trial["logging"]["iteration_step_info_interval"] == 1
        assert trial["checkpoints"]["checkpoint_interval"] > 10 and trial["checkpoints"]["save_initial_state"] is False
        schedule = trial["optimizer"]["learning_rate_scheduler"]
        assert schedule["lr_warmup_steps"] + schedule["lr_decay_steps"] == 10
        assert "save_final_state" not in trial["checkpoints"]  # which 0.4 refuses


def test_recomputation_is_searched_where_a_run_shows_that_the_release_has_it() -> None:
    preset = bound()
    assert len(preset.get_search_space()["recompute"].grid(2)) == 1
    preset.read_baseline("ParallelismArgs(dp=1, pp=2, tp=4, recompute_layer=False, expert_parallel_size=1)\n")
    assert preset.get_search_space()["recompute"].grid(2) == [False, True]
    trial = yaml.safe_load(preset.files(point(preset, recompute=True))["llama.yaml"])
    assert trial["parallelism"]["recompute_layer"] is True


@pytest.mark.parametrize(
    "changes",
    [{"tp": 8, "pp": 2}, {"mbs": 64, "tp": 1, "pp": 1}, {"pp": 8, "tp": 1, "mbs": 64}],
    ids=["world", "batch", "micro-batches"],
)
def test_a_layout_that_nanotron_refuses_is_not_tried(changes: dict[str, int]) -> None:
    preset = bound()
    assert preset.explain(point(preset, **changes))


@pytest.mark.parametrize("step", [OLD_STEP, NEW_STEP], ids=["0.4", "main"])
def test_the_speed_is_that_of_the_steps_by_their_own_clock(step: str) -> None:
    text = log(step, ["4.02K", "1.35K", "1.35K", "1.35K", "1.36K"])
    logged = read_steps(text)
    assert [found.seconds for found in logged.steps] == [4.02, 1.35, 1.35, 1.35, 1.36]
    assert {found.tflops for found in logged.steps} == {211.0}
    measured = bound().evaluator().measure(text, {"parameters": {}})
    assert measured.value == pytest.approx(64 * 4096 / 1.35, rel=0.01)
    assert measured.step_s == pytest.approx(1.35, rel=0.01)


def test_the_peak_of_memory_is_the_largest_that_is_printed() -> None:
    assert read_steps(log(OLD_STEP, ["1.35K"])).peak_bytes == 43_600_000_000
    assert read_steps("Before train_batch_iter Memory usage: 1.00MiB. Peak reserved: 512.00MiB").peak_bytes == 2**29


def test_a_loss_that_is_no_number_is_no_value() -> None:
    text = log(OLD_STEP.replace("lm_loss: 11.9", "lm_loss: nan"), ["1.35K"] * 4)
    with pytest.raises(ValueError, match="nan"):
        bound().evaluator().measure(text, {"parameters": {}})


def test_levers_are_those_that_a_layout_can_have() -> None:
    preset = bound()
    assert {each.name for each in preset.levers(COMMAND, point(preset))} == {"async_tp", "fused_optimizer"}
    assert {each.name for each in preset.levers(COMMAND, point(preset, tp=1))} == {"fused_optimizer"}
    trial = yaml.safe_load(preset.files({**point(preset), "async_tp": True})["llama.yaml"])
    assert trial["parallelism"]["tp_linear_async_communication"] is True


def test_a_file_for_another_number_of_gpus_is_refused(config: Path) -> None:
    config.write_text(yaml.safe_dump({**CONFIG, "parallelism": {**CONFIG["parallelism"], "dp": 2}}))
    with pytest.raises(UsageError, match="16 GPUs, but the command starts 8"):
        bound()


def test_a_mixture_of_experts_is_refused(config: Path) -> None:
    config.write_text(yaml.safe_dump({**CONFIG, "parallelism": {**CONFIG["parallelism"], "expert_parallel_size": 2}}))
    with pytest.raises(UsageError, match="dense"):
        bound()
