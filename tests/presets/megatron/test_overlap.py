from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.megatron.test_commands import LLAMA3_8B, MIXTRAL, ONE_H200
from tests.presets.megatron.test_space import PLAIN, product, space, tiny
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.overlap import module_of
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params, Value
from zenith_tune.testing import PresetContract

EVERYTHING = "default+zero+sequence_parallel+overlap+tp_overlap+ep_overlap+modules"
EXPERTS = "--num-experts 4 --disable-bias-linear --moe-token-dispatcher-type alltoall"
GRADS, GATHER = "--overlap-grad-reduce", "--overlap-param-gather"


def bound(command: str, search: str) -> MegatronLmPreset:
    preset = MegatronLmPreset(search=search)
    preset.bind(command)
    return preset


def written(command: str, search: str, **change: Value) -> list[str]:
    text = bound(command, search).apply_parameters(command, {**PLAIN, **change})
    return shlex.split(text)


class TestMegatronLmPresetWithOverlap(PresetContract):
    def make(self) -> MegatronLmPreset:
        return bound(self.command(), EVERYTHING)

    def command(self) -> str:
        return tiny(EXPERTS, n_gpus=4, gbs=8)


def test_overlap_is_searched_on_request_alone() -> None:
    assert not {"overlap", "tp_overlap", "ep_overlap"} & set(space(MIXTRAL).choices)
    choices = space(MIXTRAL, EVERYTHING).choices
    assert choices["overlap"] == ("none", "params", "grads")
    assert choices["tp_overlap"] == choices["ep_overlap"] == (False, True)


def test_the_commands_own_comes_first_and_is_its_point() -> None:
    found = space(LLAMA3_8B, "mbs+overlap+tp_overlap")
    assert found.choices["overlap"] == ("params", "grads", "none")
    own = found.own_point()
    assert (own["overlap"], own["tp_overlap"]) == ("params", False)
    assert space(tiny(GRADS), "overlap").own_point()["overlap"] == "grads"
    assert space(tiny("--tp-comm-overlap"), "tp_overlap").own_point()["tp_overlap"] is True


def test_parameters_are_not_gathered_early_without_the_distributed_optimizer() -> None:
    assert space(tiny(), "overlap").choices["overlap"] == ("none", "grads")
    found = space(tiny(), "zero+overlap")
    assert mentions(found.explain({**PLAIN, "zero": 0, "overlap": "params"}), "overlap params", "zero 0")
    assert found.explain({**PLAIN, "zero": 1, "overlap": "params"}) is None


@pytest.mark.parametrize(("overlap", "options"), [("none", set()), ("grads", {GRADS}), ("params", {GRADS, GATHER})])
@pytest.mark.parametrize("own", ["", GRADS, f"{GRADS} {GATHER}"])
def test_a_point_has_the_switches_of_its_overlap_whatever_the_command_has(
    overlap: str, options: set[str], own: str
) -> None:
    words = written(tiny(f"--use-distributed-optimizer {own}"), "overlap", overlap=overlap)
    assert {GRADS, GATHER} & set(words) == options


def test_a_placeholder_takes_the_place_of_the_switches() -> None:
    words = written(f"OVERLAP={{overlap}} {tiny()}", "overlap", overlap="grads")
    assert words[0] == "OVERLAP=grads" and GRADS not in words


def test_gathering_is_never_written_without_the_reduction_of_gradients() -> None:
    command = tiny(f"--use-distributed-optimizer {GRADS} {GATHER}", n_gpus=4, gbs=8)
    preset = bound(command, "tp+zero+overlap")
    for point in preset.points():
        words = preset.apply_parameters(command, point).split()
        assert GATHER not in words or {GRADS, "--use-distributed-optimizer"} <= set(words)
        assert (GATHER in words) == (point["overlap"] == "params")


def test_one_data_parallel_rank_is_tried_once() -> None:
    found = space(tiny(n_gpus=2, gbs=4), "tp+overlap")
    assert mentions(found.explain({**PLAIN, "tp": 2, "overlap": "grads"}), "overlap", "none", "grads")
    assert found.explain({**PLAIN, "tp": 1, "overlap": "grads"}) is None
    own = space(tiny(f"--use-distributed-optimizer {GRADS} {GATHER}", n_gpus=2, gbs=4), "tp+zero+overlap")
    alone = [point for point in own.points() if point["tp"] == 2]
    assert [(point["zero"], point["overlap"]) for point in alone] == [(0, "none"), (1, "params")]


def test_experts_that_have_several_ranks_are_not_alone() -> None:
    found = space(tiny(EXPERTS, n_gpus=2, gbs=4), "tp+etp+overlap")
    assert found.explain({**PLAIN, "tp": 2, "etp": 1, "overlap": "grads"}) is None
    assert found.explain({**PLAIN, "tp": 2, "etp": 2, "overlap": "grads"}) is not None


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--overlap-param-gather-with-optimizer-step", ["params"]),
        ("--save-params-interval 5", ["none", "grads"]),
    ],
)
def test_switches_of_the_command_ask_for_their_overlap(option: str, allowed: list[str]) -> None:
    command = tiny(f"--use-distributed-optimizer --pipeline-model-parallel-size 2 {option}", n_gpus=4, gbs=8)
    found = space(command, "vp+overlap")
    point: Params = {**PLAIN, "pp": 2, "vp": 3}
    kinds = [kind for kind in ("none", "grads", "params") if found.explain({**point, "overlap": kind}) is None]
    assert kinds == allowed


def test_tensor_parallel_overlap_needs_sequence_parallelism_and_transformer_engine() -> None:
    found = space(tiny(), "tp+tp_overlap")
    assert mentions(found.explain({**PLAIN, "tp_overlap": True}), "tp_overlap", "sequence")
    assert found.explain({**PLAIN, "tp": 2, "tp_overlap": True}) is None
    assert space(ONE_H200, "tp_overlap").choices["tp_overlap"] == (False,)


def test_an_axis_that_is_searched_decides_in_place_of_the_commands_switch() -> None:
    command = tiny("--tp-comm-overlap")
    assert mentions(space(command, "tp").explain(PLAIN), "--tp-comm-overlap", "sequence")
    assert space(command, "tp+tp_overlap").explain({**PLAIN, "tp_overlap": False}) is None
    assert "--tp-comm-overlap" not in written(command, "tp+tp_overlap", tp_overlap=False)
    assert "--tp-comm-overlap" in written(tiny(), "tp+tp_overlap", tp=2, tp_overlap=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ep": 1}, ("ep", 1)),
        ({"pp": 2}, ("vp", 1, "pp")),
        ({"recompute": "full/uniform1"}, ("no full",)),
        ({"recompute": "selective/moe"}, ("selective/moe",)),
        ({"pp": 2, "vp": 3}, None),
        ({"recompute": "selective/layernorm"}, None),
    ],
)
def test_expert_parallel_overlap_asks_for_its_layout(change: Params, named: Any) -> None:
    found = space(tiny(EXPERTS, n_gpus=4, gbs=8), EVERYTHING)
    point: Params = {**PLAIN, "ep": 2, "zero": 0, "overlap": "none", "sequence_parallel": False, **change}
    reason = found.explain({**point, "tp_overlap": False, "ep_overlap": True})
    assert reason is None if named is None else mentions(reason, "ep_overlap", *named)
    assert found.explain({**point, "tp_overlap": False, "ep_overlap": False}) is None


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--num-experts 4 --moe-token-dispatcher-type allgather",
        "--num-experts 4",
        f"{EXPERTS} --moe-shared-expert-overlap",
        f"{EXPERTS} --overlap-dispatch-backward-with-experts-wgrad",
        f"{EXPERTS} --moe-layer-recompute",
        f"{EXPERTS} --mtp-num-layers 2",
        f"{EXPERTS} --transformer-impl local",
        f"{EXPERTS} --cuda-graph-impl transformer_engine",
        f"{EXPERTS} --recompute-modules layernorm moe",
    ],
)
def test_expert_parallel_overlap_is_not_tried_where_the_command_forbids_it(options: str) -> None:
    assert space(tiny(options), "ep_overlap").choices["ep_overlap"] == (False,)


def test_expert_parallel_overlap_needs_sixteen_bits() -> None:
    assert space(tiny(EXPERTS).replace("--bf16", ""), "ep_overlap").choices["ep_overlap"] == (False,)
    assert space(tiny(EXPERTS), "ep_overlap").choices["ep_overlap"] == (False, True)


@pytest.mark.parametrize("option", ["--delay-wgrad-compute", "--ep-overlap-early-attn-memory-release"])
def test_expert_parallel_overlap_stays_where_another_switch_needs_it(option: str) -> None:
    command = tiny(f"{EXPERTS} --overlap-moe-expert-parallel-comm {option}")
    assert space(command, "ep_overlap").choices["ep_overlap"] == (True,)


@pytest.mark.slow
def test_points_are_exactly_those_of_the_space_that_no_rule_forbids() -> None:
    found = space(tiny(EXPERTS, n_gpus=4, gbs=4), EVERYTHING, mbs_max=1)
    legal = [point for point in product(found) if found.explain(point) is None]
    points = list(found.points())
    assert len(points) == len(legal) > 1000
    assert {tuple(point.items()) for point in points} == {tuple(point.items()) for point in legal}


def test_points_that_differ_in_overlap_alone_are_layouts_of_their_own() -> None:
    found = space(tiny(EXPERTS, n_gpus=4, gbs=8), EVERYTHING, mbs_max=1)
    points = list(found.points())
    assert len({found.layout(point) for point in points}) == len(points)


def test_a_script_that_overlaps_by_itself_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(f'{tiny(GRADS)} "$@"\n')
    with pytest.raises(UsageError) as caught:
        bound("bash train.sh", "tp+overlap")
    assert mentions(caught.value.problem, "--overlap-grad-reduce", "train.sh")
    assert mentions(caught.value.hint, "overlap", "search")


def test_recomputation_names_a_module() -> None:
    assert module_of("selective/mlp") == "mlp"
    assert module_of("full/block4") == ""
