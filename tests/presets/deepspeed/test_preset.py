from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.deepspeed.jobs import PLAIN, TRAINER, bound, command, config_of, point, trainer_command, write
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.preset import RESULT_CONFIG, DeepSpeedPreset, _short
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.testing import PresetContract


class TestContract(PresetContract):
    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        zero = {"stage": [1, 2, 3], "overlap_comm": [True, False], "offload_param": {"device": "cpu"}}
        self.text = command(write(tmp_path, {**PLAIN, "zero_optimization": zero}), "--lr 0.1 'a b'")

    def make(self) -> DeepSpeedPreset:
        return bound(self.text, search="default+offload_param")

    def command(self) -> str:
        return self.text


class TestTrainerContract(PresetContract):
    @pytest.fixture(autouse=True)
    def _written(self, tmp_path: Path) -> None:
        self.text = trainer_command(write(tmp_path, TRAINER))

    def make(self) -> DeepSpeedPreset:
        return bound(self.text, search="default+checkpointing", cluster="h100x4", model="llama3-8b", seq=2048)

    def command(self) -> str:
        return self.text


def test_stages_and_every_micro_batch_that_divides_the_batch_are_searched(tmp_path: Path) -> None:
    space = bound(command(write(tmp_path, PLAIN))).get_search_space()
    assert {name: parameter.grid(9) for name, parameter in space.items()} == {
        "stage": [0, 1, 2, 3],
        "mbs": [1, 2, 4, 8, 16],
    }


def test_the_global_batch_is_the_same_in_every_trial(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, PLAIN)))
    for mbs in (1, 2, 4, 8, 16):
        config = config_of(preset, mbs=mbs)
        parts = (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"])
        assert config["train_batch_size"] == 64 == parts[0] * parts[1] * 4


@pytest.mark.parametrize(
    ("config", "args", "batch"),
    [
        ({"train_batch_size": 64}, {}, 64),
        ({"train_batch_size": 64}, {"gbs": 32}, 32),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, {}, 24),
        ({"train_micro_batch_size_per_gpu": 2}, {}, 8),
    ],
)
def test_where_the_global_batch_comes_from(tmp_path: Path, config: dict[str, int], args: Any, batch: int) -> None:
    assert config_of(bound(command(write(tmp_path, config)), **args))["train_batch_size"] == batch


def test_each_trial_has_its_own_file_and_the_users_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    before = path.read_bytes()
    preset = bound(command(path))
    text = preset.apply_parameters(command(path), point(preset, stage=3))
    assert text == command(Path("{trial_folder}/ds_config.json"))
    assert config_of(preset, stage=3)["zero_optimization"] == {"stage": 3}
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "form",
    [
        "deepspeed --num_gpus 4 train.py --deepspeed_config={}",
        "deepspeed --num_gpus=4 train.py --deepspeed {}",
        "torchrun --nproc_per_node 4 train.py --deepspeed '{}' --x 1",
        "accelerate launch --num_processes 4 train.py --deepspeed={}",
        'python -m torch.distributed.run --nproc-per-node=2 --nnodes=2 train.py --deepspeed-config "{}"',
    ],
)
def test_the_file_is_named_in_the_commands_own_way(tmp_path: Path, form: str) -> None:
    text = form.format(write(tmp_path, PLAIN))
    preset = bound(text)
    written = preset.apply_parameters(text, point(preset))
    assert "{trial_folder}/ds_config.json" in written and "ds.json" not in written
    assert "'{trial" not in written and '"{trial' not in written, "a folder with blanks brings its own quotes"
    assert DeepSpeedPreset.recognises(text)


def test_a_trial_prints_what_is_measured_and_the_result_does_not(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, {**PLAIN, "steps_per_print": 2000})))
    trial = config_of(preset, stage=2, mbs=4)
    best = preset.result_files(point(preset, stage=2, mbs=4))[RESULT_CONFIG]
    assert (trial["steps_per_print"], trial["wall_clock_breakdown"], trial["log_level"]) == (1, True, "info")
    assert json.loads(best) == {
        **PLAIN,
        "zero_optimization": {"stage": 2},
        "steps_per_print": 2000,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
    }


def test_the_result_is_a_command_beside_its_file(tmp_path: Path) -> None:
    folder, path = tmp_path / "a study", write(tmp_path, PLAIN)
    preset = bound(command(path))
    line = preset.result_command(command(path), point(preset, mbs=4), folder)
    assert line.endswith(f"--deepspeed_config '{folder}'/{RESULT_CONFIG}")


def test_the_baseline_is_the_users_own_but_for_lists_and_what_it_prints(tmp_path: Path) -> None:
    zero = {"stage": [2, 1], "overlap_comm": [False, True]}
    own = {
        **PLAIN,
        "train_micro_batch_size_per_gpu": [4, 2],
        "zero_optimization": zero,
        "autotuning": {"enabled": True},
    }
    preset = bound(command(write(tmp_path, own)))
    assert preset.baseline_command(command(tmp_path / "ds.json")) == command(Path("{trial_folder}/ds_config.json"))
    [text] = preset.baseline_files().values()
    config = json.loads(text)
    assert config["zero_optimization"] == {"stage": 1, "overlap_comm": False}
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (4, 4)
    assert config["wall_clock_breakdown"] is True and "autotuning" not in config


def test_a_list_makes_its_key_an_axis_and_a_trial_has_one_value(tmp_path: Path) -> None:
    zero = {"stage": [0, 2], "overlap_comm": [False, True], "reduce_bucket_size": [5e7, 5e8]}
    preset = bound(command(write(tmp_path, {**PLAIN, "zero_optimization": zero})))
    space = preset.get_search_space()
    assert space["stage"].grid(9) == [0, 2] and space["overlap_comm"].grid(9) == [False, True]
    assert space["reduce_bucket_size"].grid(9) == [50_000_000, 500_000_000]
    written = config_of(preset, stage=2, overlap_comm=True, reduce_bucket_size=500_000_000)["zero_optimization"]
    assert written == {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500_000_000}
    assert config_of(preset, stage=0)["zero_optimization"]["overlap_comm"] is False, "no list is left anywhere"


def test_listed_micro_batches_are_exactly_those_and_one_that_does_not_divide_is_pruned(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, {**PLAIN, "train_micro_batch_size_per_gpu": [2, 3]})))
    assert preset.get_search_space()["mbs"].grid(9) == [2, 3]
    reason = preset.explain(point(preset, mbs=3))
    assert mentions(reason, "micro-batch", "3 * 4", 64)
    assert preset.explain(point(preset, mbs=2)) is None


def test_a_key_without_effect_at_a_stage_is_tried_once(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, PLAIN)), search="default+overlap_comm")
    assert preset.explain(point(preset, stage=1, overlap_comm=True)) is None
    assert mentions(preset.explain(point(preset, stage=1, overlap_comm=False)), "overlap_comm", "stage 1")
    assert preset.explain(point(preset, stage=2, overlap_comm=False)) is None


def test_the_own_value_of_a_searched_key_comes_first(tmp_path: Path) -> None:
    zero = {"stage": 1, "reduce_bucket_size": 123, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    preset = bound(
        command(write(tmp_path, {**PLAIN, "zero_optimization": zero})),
        search="default+reduce_bucket_size+offload_optimizer",
    )
    space = preset.get_search_space()
    assert space["reduce_bucket_size"].grid(9)[0] == 123 and space["offload_optimizer"].grid(9) == ["cpu", "none"]
    kept = config_of(preset, stage=1)["zero_optimization"]["offload_optimizer"]
    assert kept == {"device": "cpu", "pin_memory": False}
    assert "offload_optimizer" not in config_of(preset, stage=1, offload_optimizer="none")["zero_optimization"]


def test_what_a_stage_cannot_offload_is_taken_out(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    preset = bound(command(write(tmp_path, {**PLAIN, "zero_optimization": zero})))
    assert set(config_of(preset, stage=3)["zero_optimization"]) == set(zero)
    assert set(config_of(preset, stage=2)["zero_optimization"]) == {"stage", "offload_optimizer"}
    assert set(config_of(preset, stage=0)["zero_optimization"]) == {"stage"}


def test_the_section_for_deepspeeds_own_tuner_is_heeded_and_taken_out(tmp_path: Path) -> None:
    section = {
        "enabled": True,
        "model_info": {"profile": True, "num_params": 1},
        "min_train_micro_batch_size_per_gpu": 2,
        "max_train_micro_batch_size_per_gpu": 8,
        "tuner_type": "model_based",
        "tuner_early_stopping": 3,
        "tuner_num_trials": 9,
        "metric": "latency",
    }
    preset = bound(command(write(tmp_path, {**PLAIN, "autotuning": section})))
    assert preset.get_search_space()["mbs"].grid(9) == [2, 4, 8]
    assert "autotuning" not in config_of(preset)
    strategy = preset.get_recommended_strategy()
    assert isinstance(strategy, ZeroProgressiveStrategy)
    rules = strategy.rules
    assert (rules.inside, rules.patience, rules.inside_trials) == ("model", 3, 9)
    assert mentions(preset.evaluator().describe(), "deepspeed", "latency", "gbs 64", "ds.json")
    assert any("autotuning" in note for note in preset.notes(""))


def test_a_section_that_is_not_fast_searches_the_other_keys_too(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, {**PLAIN, "autotuning": {"fast": False}})))
    assert {"overlap_comm", "reduce_bucket_size", "stage3_prefetch_bucket_size"} <= set(preset.get_search_space())


def test_own_option_names_of_a_script_are_mapped_as_the_section_says(tmp_path: Path) -> None:
    mappings = {"train_micro_batch_size_per_gpu": "--batch_size", "gradient_accumulation_steps": "--gas"}
    path = write(tmp_path, {**PLAIN, "autotuning": {"arg_mappings": mappings}})
    preset = bound(command(path, "--batch_size 1"))
    written = preset.apply_parameters(command(path, "--batch_size 1"), point(preset, mbs=8))
    assert written.endswith("--batch_size 8 --gas 2")


def test_memory_is_predicted_where_model_and_machine_are_known(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    preset = bound(command(path), model="llama3-8b", seq=2048, cluster="h100x4")
    reason = preset.explain(point(preset, stage=0))
    assert mentions(reason, "(2 + 2 + 16) bytes", "stage 0")
    assert preset.explain(point(preset, stage=3)) is None
    unknown = bound(command(path))
    assert unknown.explain(point(unknown, stage=0)) is None
    assert any("memory" in note and "--model" in note for note in unknown.notes(""))


def test_a_plan_has_the_layouts_of_deepspeed(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, PLAIN)), model="llama3-8b", seq=2048, cluster="h100x8")
    subject = preset.subject("")
    assert (subject.cluster.num_gpus, subject.job.framework.name, subject.job.precision) == (4, "deepspeed", "bf16")
    layout = preset.layout(point(preset, stage=2, mbs=4))
    assert (layout.dp, layout.zero, layout.num_micro_batches) == (4, 2, 4)
    with pytest.raises(UsageError, match="--model_name_or_path"):
        bound(command(write(tmp_path, PLAIN))).subject("")
    with pytest.raises(UsageError, match=r"4 GPUs.*h100x2"):
        bound(command(write(tmp_path, PLAIN)), model="llama3-8b", seq=1, cluster="h100x2").subject("")


def test_flops_are_counted_for_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    evaluator = bound(command(path), metric="flops", model="llama3-8b", seq=2048, cluster="h100x4").evaluator()
    assert mentions(evaluator.describe(), "flops", "gbs 64")
    step = "global_step={}, RunningAvgSamplesPerSec=1.0, CurrSamplesPerSec=4.0, \n"
    value = evaluator.evaluate("".join(step.format(number) for number in (3, 4, 5)), {})
    assert value == pytest.approx(6 * 8.03e9 * 2048 * 4 / 4 / 1e12, rel=0.1)
    with pytest.raises(UsageError, match=r"flops.*--model_name_or_path"):
        bound(command(path), metric="flops").evaluator()


def test_a_point_is_labelled_by_what_has_a_choice(tmp_path: Path) -> None:
    preset = bound(command(write(tmp_path, PLAIN)), search="default+reduce_bucket_size")
    assert preset.label(point(preset, stage=1, mbs=4)) == "Z1 mbs4 reduce_bucket_size=500M"
    assert preset.label(point(preset, stage=0, mbs=4)) == "Z0 mbs4"


def test_the_users_own_point_is_known(tmp_path: Path) -> None:
    own = bound(command(write(tmp_path, {**PLAIN, "train_micro_batch_size_per_gpu": 4}))).own_point("")
    assert own == {"stage": 1, "mbs": 4}
    listed = {**PLAIN, "train_micro_batch_size_per_gpu": [2, 8]}
    assert bound(command(write(tmp_path, listed))).own_point("") == {"stage": 1, "mbs": 2}
    other = {**PLAIN, "train_micro_batch_size_per_gpu": 3}
    assert bound(command(write(tmp_path, other))).own_point("") is None


@pytest.mark.parametrize(("more", "mbs"), [({}, 16), ({"gradient_accumulation_steps": 4}, 4)])
def test_a_micro_batch_that_is_left_out_is_the_one_that_deepspeed_makes(
    tmp_path: Path, more: dict[str, int], mbs: int
) -> None:
    path = write(tmp_path, {**PLAIN, **more})
    assert bound(command(path)).own_point("") == {"stage": 1, "mbs": mbs}
    assert bound(command(path), gbs=32).own_point("") is None, "it is not the batch that is tuned"


def test_what_is_not_searched_stays(tmp_path: Path) -> None:
    space = bound(command(write(tmp_path, PLAIN)), search="mbs").get_search_space()
    assert space["stage"].grid(9) == [1] and len(space["mbs"].grid(9)) == 5
    fixed = {**PLAIN, "train_micro_batch_size_per_gpu": 4}
    assert bound(command(write(tmp_path, fixed)), search="stage").get_search_space()["mbs"].grid(9) == [4]


def test_the_tuner_recognises_the_command(tmp_path: Path) -> None:
    tuner = PresetTuner(command(write(tmp_path, PLAIN)), output_dir=tmp_path / "out")
    assert (tuner.config.preset_name, tuner.config.strategy_name) == ("deepspeed", "zero-progressive")
    assert not DeepSpeedPreset.recognises("python train.py --deepspeed")
    assert not DeepSpeedPreset.recognises("torchrun train.py")


def test_millions_are_written_as_such() -> None:
    assert _short(500_000_000) == "500M"
    assert _short(100_000) == "100000"
    assert _short(True) == "True"
