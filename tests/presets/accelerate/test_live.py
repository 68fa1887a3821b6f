"""What the hook shows of the user's own command, and what the preset makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.presets.accelerate.jobs import bound, choices, command, config_of, point, write
from tests.presets.accelerate.logs import prepared, steps
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.presets.accelerate.evaluator import AccelerateEvaluator
from zenith_tune.presets.accelerate.preset import AcceleratePreset

SECONDS = [2.0, 0.5, 0.5, 0.51, 0.49]
MEGATRON = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "num_micro_batches": 4,
    "sequence_parallel": False,
    "use_distributed_optimizer": True,
    "global_batch_size": 64,
}


def log(*, passes: int = 1, samples: int | None = None, **values: Any) -> str:
    """Return what the sixteen ranks of the job in `jobs` write."""
    lines = [prepared(f"host:{rank}", **{"processes": 16, **values}) for rank in range(16)]
    reported = {} if samples is None else {"samples": samples}
    return "".join(lines) + steps(SECONDS, passes=passes, **reported)


def plain(folder: Path, more: str = "--batch_size 2", **args: Any) -> AcceleratePreset:
    return bound(command(write(folder, "MULTI_GPU"), more), **args)


def fault(preset: AcceleratePreset, params: dict[str, Any], text: str) -> str | None:
    return HookedRun.read(text).fault(preset.asked(params))


def test_an_accumulation_of_the_script_is_part_of_the_batch(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    assert choices(preset)["mbs"] == [2, 1]
    evaluator = preset.evaluator()
    own = log(passes=8, samples=256)
    assert evaluator.measure(own, {}).value == pytest.approx(256 / 0.5), "also before anybody has learnt of it"
    assert preset.read_baseline(own)
    assert choices(preset)["mbs"] == [2, 1, 4, 8, 16]
    assert preset.layout({"mbs": 4}).global_batch == 256
    assert "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4" in preset.apply_parameters(
        command(tmp_path / "own.yaml"), {"mbs": 4}
    )
    assert evaluator.measure(own, {}).value == pytest.approx(256 / 0.5)


def test_a_command_that_says_it_all_teaches_nothing(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    assert preset.read_baseline(log(passes=1, samples=32)) == []
    assert choices(preset)["mbs"] == [2, 1]


def test_a_trial_of_another_number_of_samples_has_failed(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    preset.read_baseline(log(passes=8, samples=256))
    good = log(passes=4, samples=256, batch_sizes=[4])
    other = log(passes=4, samples=128, batch_sizes=[4])
    assert fault(preset, {"mbs": 4}, good) is None
    assert "128" in (fault(preset, {"mbs": 4}, other) or "")


def test_without_a_baseline_an_accumulation_of_the_script_is_a_fault(tmp_path: Path) -> None:
    given = {"Accelerator": {"gradient_accumulation_steps": 8}}
    text = log(passes=1, samples=32, batch_sizes=[2], given=given)
    assert "gradient_accumulation_steps=8" in (fault(plain(tmp_path), {"mbs": 2}, text) or "")
    stated = plain(tmp_path, gbs=32)
    assert fault(stated, {"mbs": 2}, text) is None
    by_option = plain(tmp_path, more="--batch_size 2 --gradient_accumulation_steps 1")
    assert fault(by_option, {"mbs": 2}, text) is None


def test_a_given_batch_that_is_not_the_commands_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="256"):
        plain(tmp_path, gbs=64).read_baseline(log(passes=8, samples=256))


def test_an_accumulation_by_a_plugin_cannot_be_changed(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    given = {"Accelerator": {"gradient_accumulation_plugin": "GradientAccumulationPlugin"}}
    notes = preset.read_baseline(log(passes=8, samples=256, given=given))
    assert any("gradient_accumulation_plugin" in note for note in notes)
    assert preset.explain({"mbs": 2}) is None
    assert "gradient_accumulation_plugin" in (preset.explain({"mbs": 4}) or "")


def test_a_megatron_plugin_of_the_script_has_its_axes_searched(tmp_path: Path) -> None:
    preset = plain(tmp_path)
    given = {"MegatronLMPlugin": {"tp_degree": 2, "num_micro_batches": 4}}
    own = log(type="MEGATRON_LM", wrapper="MegatronEngine", settings=MEGATRON, given=given)
    assert fault(preset, {}, own) is None
    notes = preset.read_baseline(own)
    found = choices(preset)
    assert found["tp"] == [2] and len(found["pp"]) > 1 and len(found["recompute"]) == 2
    assert any("tp_degree=2" in note for note in notes)
    config = config_of(preset, pp=2, mbs=4)
    assert config["distributed_type"] == "MEGATRON_LM"
    assert config["megatron_lm_config"]["megatron_lm_pp_degree"] == 2
    assert config["megatron_lm_config"]["megatron_lm_num_micro_batches"] == 4
    assert preset.explain(point(preset, pp=2, mbs=4)) is None
    assert preset.explain(point(preset, pp=2, mbs=2)) is not None, "the script fixes the number of micro-batches"


@pytest.mark.parametrize(
    ("kind", "wrapper", "settings", "given", "fixed", "searched"),
    [
        ("DEEPSPEED", "DeepSpeedEngine", {"zero_stage": 3}, {"DeepSpeedPlugin": {"zero_stage": 3}}, "stage", None),
        ("DEEPSPEED", "DeepSpeedEngine", {"zero_stage": 3}, {}, "", "stage"),
        (
            "FSDP",
            "FSDPModule",
            {"fsdp_version": 2, "reshard_after_forward": False, "activation_checkpointing": True},
            {"FullyShardedDataParallelPlugin": {"fsdp_version": 2, "reshard_after_forward": False}},
            "reshard",
            "checkpointing",
        ),
    ],
)
def test_what_a_plugin_of_the_script_leaves_open_is_searched(
    tmp_path: Path,
    kind: str,
    wrapper: str,
    settings: dict[str, Any],
    given: dict[str, Any],
    fixed: str,
    searched: str | None,
) -> None:
    preset = plain(tmp_path, more="")
    preset.read_baseline(log(type=kind, wrapper=wrapper, settings=settings, given=given))
    found = choices(preset)
    assert not fixed or len(found[fixed]) == 1
    if searched is not None:
        assert len(found[searched]) > 1
        assert found[searched][0] == {"stage": 3, "checkpointing": True}[searched], "its own first"


def test_where_nothing_is_left_to_search_the_arguments_are_named(tmp_path: Path) -> None:
    preset = plain(tmp_path, more="")
    given = {"DeepSpeedPlugin": {"hf_ds_config": "dict"}}
    with pytest.raises(UsageError, match="hf_ds_config"):
        preset.read_baseline(log(type="DEEPSPEED", wrapper="DeepSpeedEngine", settings={"zero_stage": 2}, given=given))


def test_a_plain_evaluator_takes_the_batch_that_it_is_given() -> None:
    text = prepared("host:1") + prepared("host:2") + steps(SECONDS, passes=4, samples=99)
    assert AccelerateEvaluator(gbs=8, n_gpus=2).measure(text, {}).value == pytest.approx(16)
