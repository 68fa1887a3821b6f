"""Which levers a point of a DeepSpeed job is offered, what they write, and what a log must say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.presets.deepspeed.jobs import PLAIN, bound, command, config_of, point, write
from zenith_tune.errors import UnknownNameError
from zenith_tune.evaluators.failures.no_effect import disagreement
from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset
from zenith_tune.presets.levers import Lever, names_on_request, plain_names
from zenith_tune.presets.shared.zero_levers import LEVERS
from zenith_tune.study.parameters import Value

PARTS = {"dp", "overhead", "optimizer"}
KNOWN: dict[str, Any] = {"model": "llama-3-8b", "seq": 2048, "cluster": "h100x4"}
NODES = "deepspeed --num_nodes 2 --num_gpus 4"
SMALL, LARGE = "reduce_bucket_size=50000000", "reduce_bucket_size=500000000"
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}


def job(folder: Path, zero: dict[str, Any], launcher: str = "deepspeed --num_gpus 4", **args: Any) -> DeepSpeedPreset:
    more, given = args.pop("config", {}), {"search": "mbs", **args}
    path = write(folder, {**PLAIN, **more, "zero_optimization": {"stage": 2, **zero}})
    return bound(command(path, launcher=launcher), **given)


def offered(preset: DeepSpeedPreset, **values: Value) -> dict[str, Lever]:
    return {lever.label: lever for lever in preset.levers("", point(preset, **values))}


def test_declarations_are_whole() -> None:
    names = {*plain_names(LEVERS), *names_on_request(LEVERS)}
    for lever in LEVERS:
        assert lever.source and lever.sets and lever.stages, lever.name
        assert lever.saves.keys() <= PARTS and lever.excludes | lever.needs.keys() <= names, lever.name
        assert lever.saves or lever.effect, "it must be of some use"
    declared = [(lever.name, lever.value) for lever in LEVERS]
    assert len(set(declared)) == len(declared)
    assert {*names_on_request(LEVERS)} == {
        *("zero_quantized_weights", "zero_quantized_gradients", "communication_data_type")
    }


def test_overlap_is_offered_where_it_is_off(tmp_path: Path) -> None:
    assert "overlap_comm" in offered(job(tmp_path, {}))
    assert "overlap_comm" not in offered(job(tmp_path, {"overlap_comm": True}))
    assert "overlap_comm" not in offered(job(tmp_path, {"stage": 3})), "DeepSpeed has it on there"
    assert "overlap_comm" in offered(job(tmp_path, {"stage": 3, "overlap_comm": False}))
    assert not offered(job(tmp_path, {"stage": 0}))
    alone = job(tmp_path, {}, launcher="deepspeed --num_gpus 1")
    assert "overlap_comm" not in offered(alone), "one rank has nothing to reduce"


def test_what_is_searched_is_no_lever(tmp_path: Path) -> None:
    assert "overlap_comm" not in offered(job(tmp_path, {}, search="mbs+overlap_comm"))
    listed = job(tmp_path, {"reduce_bucket_size": [5e7, 5e8]})
    assert not [label for label in offered(listed) if label.startswith("reduce_bucket_size")]
    assert "reduce_bucket_size" not in listed.lever_space() and "overlap_comm" in listed.lever_space()
    assert not offered(job(tmp_path, {}, levers="none"))
    assert offered(job(tmp_path, {}, levers="overlap_comm")).keys() == {"overlap_comm"}


def test_smaller_buckets_need_an_overlap_and_larger_ones_a_smaller_own(tmp_path: Path) -> None:
    plain = offered(job(tmp_path, {}))
    assert plain[SMALL].needs == {"overlap_comm"} and LARGE not in plain
    assert not offered(job(tmp_path, {"overlap_comm": True}))[SMALL].needs
    own = offered(job(tmp_path, {"reduce_bucket_size": 5e7, "allgather_bucket_size": 2e8}))
    assert SMALL not in own and LARGE in own and "allgather_bucket_size=500000000" in own


def test_the_last_bucket_is_what_an_overlap_does_not_hide(tmp_path: Path) -> None:
    large = offered(job(tmp_path, {}, **KNOWN))[SMALL]
    small = offered(job(tmp_path, {}, **{**KNOWN, "model": "gpt2"}))[SMALL]
    # 450 of 8,030 million parameters; of GPT-2's 124 million all but 50 are no longer in one bucket.
    assert large.saves["dp"] == pytest.approx(450 / 8030, rel=0.02)
    assert small.saves["dp"] == pytest.approx(1 - 50 / 124, rel=0.05)
    assert large.memory < 0 < offered(job(tmp_path, {}, **KNOWN))["overlap_comm"].memory


def test_stage_3_has_levers_of_its_own(tmp_path: Path) -> None:
    levers = offered(job(tmp_path, {"stage": 3}, **KNOWN))
    live = levers["stage3_max_live_parameters=10000000000"]
    assert live.saves["dp"] == pytest.approx((1 - 1 / 8.03) / 3, rel=0.01)
    assert {"stage3_prefetch_bucket_size=200000000", "stage3_param_persistence_threshold=1000000"} <= levers.keys()
    unknown = offered(job(tmp_path, {"stage": 3}))
    assert "stage3_max_live_parameters=10000000000" not in unknown, "nobody knows whether its weights fit"
    assert not [label for label in offered(job(tmp_path, {}, **KNOWN)) if label.startswith("stage3")]


def test_hpz_takes_the_ranks_of_a_node_and_several_nodes(tmp_path: Path) -> None:
    def hpz(zero: dict[str, Any], launcher: str) -> list[str]:
        return [label for label in offered(job(tmp_path, {"stage": 3, **zero}, launcher)) if "hpz" in label]

    assert hpz({}, NODES) == ["zero_hpz_partition_size=4"]
    assert not hpz({}, "deepspeed --num_gpus 8")
    assert not hpz({"offload_param": {"device": "cpu"}}, NODES)
    assert not hpz({"stage": 2}, NODES)


def test_an_offloaded_optimizer_is_left_to_the_gpu_in_part(tmp_path: Path) -> None:
    levers = offered(job(tmp_path, {"stage": 3, **OFFLOADED}))
    assert {"offload_ratio=0.25", "offload_ratio=0.5", "offload_ratio=0.75", "pinned_optimizer"} <= levers.keys()
    assert levers["offload_ratio=0.25"].memory > levers["offload_ratio=0.75"].memory > 0
    second = offered(job(tmp_path, OFFLOADED))
    assert "round_robin_gradients" in second and "offload_ratio=0.5" not in second
    torch_adam = {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    assert "offload_ratio=0.5" not in offered(job(tmp_path, {"stage": 3, **OFFLOADED}, config=torch_adam))
    half = {"offload_optimizer": {"device": "cpu", "ratio": 0.5, "pin_memory": True}}
    own = offered(job(tmp_path, {"stage": 3, **half}))
    assert "offload_ratio=0.25" in own and "offload_ratio=0.75" not in own and "pinned_optimizer" not in own


def test_numerics_are_changed_only_where_that_is_allowed(tmp_path: Path) -> None:
    def numerics(preset: DeepSpeedPreset) -> set[str]:
        return {label for label, lever in offered(preset).items() if lever.is_on_request}

    third = {"stage": 3}
    assert numerics(job(tmp_path, third)) == {"zero_quantized_weights", "zero_quantized_gradients"}
    assert numerics(job(tmp_path, third, allow="zero_quantized_weights")) == {"zero_quantized_gradients"}
    single = {"bf16": {"enabled": False}}
    assert numerics(job(tmp_path, {}, config=single)) == {"communication_data_type=bf16"}
    assert not numerics(job(tmp_path, {})), "gradients are in bf16 anyway"
    assert numerics(job(tmp_path, {}, config={"communication_data_type": "fp32"}))
    with pytest.raises(UnknownNameError):
        DeepSpeedPreset(allow="fp8")
    with pytest.raises(UnknownNameError):
        DeepSpeedPreset(levers="zero_quantized_weights")


def test_the_release_in_the_log_of_the_own_command_counts(tmp_path: Path) -> None:
    preset = job(tmp_path, {"stage": 3, **OFFLOADED}, NODES)
    preset.read_baseline("[INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.9.5, git-hash=unknown")
    old = offered(preset)
    assert not [label for label in old if "hpz" in label or "quantized" in label or "ratio" in label]
    assert "stage3_prefetch_bucket_size=200000000" in old
    preset.read_baseline("DeepSpeed info: version=0.19.8, git-hash=unknown")
    new = offered(preset)
    assert "zero_hpz_partition_size=4" in new and "pinned_optimizer" not in new, "0.19.5 pins by itself"


def test_levers_are_written_into_the_copy_and_stand_in_the_label(tmp_path: Path) -> None:
    preset = job(tmp_path, {"stage": 3, **OFFLOADED})
    levers: dict[str, Value] = {
        "offload_ratio": 0.5,
        "stage3_max_live_parameters": 10_000_000_000,
        "pinned_optimizer": True,
    }
    values = {**point(preset), **levers}
    [text] = preset.files(values).values()
    zero = config_of(preset)["zero_optimization"]
    assert "stage3_max_live_parameters" not in zero and "ratio" not in zero["offload_optimizer"]
    for written in (text, *preset.result_files(values).values()):
        assert '"ratio": 0.5' in written and '"stage3_max_reuse_distance": 10000000000' in written
    assert "offload_ratio=0.5" in preset.label(values) and "pinned_optimizer" in preset.label(values)


@pytest.mark.parametrize(
    ("lever", "dumped", "is_on"),
    [
        ({"overlap_comm": True}, "zero_config ...... stage=2 overlap_comm=True", True),
        ({"overlap_comm": True}, "zero_config ...... stage=2 overlap_comm=False", False),
        ({"stage3_prefetch_bucket_size": 200_000_000}, "zero_config ...... prefetch_bucket_size=50000000", False),
        ({"zero_hpz_partition_size": 4}, "zero_config ...... zero_hpz_partition_size=4", True),
        ({"offload_ratio": 0.5}, "Config(device='cpu', pin_memory=True, ratio=1.0, x=1)", False),
        ({"communication_data_type": "bf16"}, "  communication_data_type ...... torch.bfloat16", True),
        ({"communication_data_type": "bf16"}, "  communication_data_type ...... None", False),
    ],
)
def test_the_dump_of_a_run_proves_a_lever(tmp_path: Path, lever: dict[str, Value], dumped: str, is_on: bool) -> None:
    preset = job(tmp_path, {"stage": 3})
    asked = preset.logged_as({**point(preset), **lever})
    del asked["zero_optimization_stage"]
    assert (disagreement(dumped, asked) is None) == is_on


def test_a_note_names_what_may_be_tried(tmp_path: Path) -> None:
    def noted(preset: DeepSpeedPreset) -> str:
        return next((line for line in preset.notes("") if "optional settings" in line), "")

    line = noted(job(tmp_path, {}, search="default"))
    assert "overlap_comm" in line and "stage3_prefetch_bucket_size" in line and "--allow" in line
    assert not noted(job(tmp_path, {}, levers="none"))
