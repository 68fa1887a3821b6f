from __future__ import annotations

import pytest

from tests.mentions import mentions
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import JobFacts
from zenith_tune.presets.megatron.rules import switches_in

START = Layout(num_gpus=16, cp=2)


def reasons(options: str, **sizes: int | str | bool) -> list[str]:
    at = Layout(num_gpus=16, **sizes)  # type: ignore[arg-type]
    found = [switch.rule(START).reason(JobFacts(), at) for switch in switches_in(MegatronArgs.of(options.split()))]
    return [reason for reason in found if reason]


@pytest.mark.parametrize(
    ("options", "refused", "taken", "needs"),
    [
        ("--transformer-impl local", {"cp": 2}, {"cp": 1}, ("cp 1",)),
        ("--tp-comm-overlap", {"tp": 1}, {"tp": 2, "sequence_parallel": True}, ("sequence",)),
        ("--defer-embedding-wgrad-compute", {"pp": 1}, {"pp": 2}, ("pp", 1)),
        ("--no-overlap-p2p-communication", {"pp": 2, "vp": 2}, {"pp": 4, "vp": 2}, ("vp 1", "pp", 2)),
        (
            "--overlap-param-gather-with-optimizer-step",
            {"pp": 2, "zero": 1},
            {"pp": 2, "vp": 2, "zero": 1},
            ("vp", 1),
        ),
        (
            "--overlap-param-gather-with-optimizer-step",
            {"pp": 2, "vp": 2},
            {"pp": 2, "vp": 2, "zero": 1},
            ("distributed optimizer",),
        ),
        ("--fp8-param-gather", {"zero": 0}, {"zero": 1}, ("distributed optimizer",)),
        ("--moe-layer-recompute", {"recompute": "full/uniform"}, {"recompute": "selective"}, ("no full",)),
        ("--hierarchical-context-parallel-sizes 2 1", {"cp": 4}, {"cp": 2}, ("cp",)),
        (
            "--use-tp-pp-dp-mapping",
            {"pp": 2, "tp": 2, "ep": 4},
            {"pp": 2, "tp": 2, "etp": 2},
            ("dp", "edp", "pp", 1),
        ),
        ("--overlap-moe-expert-parallel-comm", {"ep": 1}, {"ep": 2}, ("ep", 1)),
        (
            "--overlap-moe-expert-parallel-comm",
            {"ep": 2, "pp": 2},
            {"ep": 2, "pp": 2, "vp": 2},
            ("vp", 1, "pp"),
        ),
        (
            "--overlap-moe-expert-parallel-comm",
            {"ep": 2, "recompute": "full/block"},
            {"ep": 2, "recompute": "selective"},
            ("no full",),
        ),
        ("--cpu-offloading-num-layers 4", {"pp": 2}, {"pp": 1}, ("pp 1",)),
        ("--cpu-offloading-num-layers 4", {"recompute": "selective"}, {"recompute": "none"}, ("no recomputation",)),
        ("--enable-cuda-graph", {"recompute": "full/uniform"}, {"recompute": "selective"}, ("no full",)),
        ("--external-cuda-graph", {"recompute": "full/uniform"}, {"recompute": "none"}, ("no full",)),
        (
            "--distribute-saved-activations",
            {"tp": 2, "recompute": "full/uniform", "sequence_parallel": True},
            {"tp": 2, "recompute": "full/uniform"},
            ("full", "tp", 1, "sequence"),
        ),
    ],
)
def test_a_switch_of_the_command_asks_for_its_layout(
    options: str, refused: dict[str, int], taken: dict[str, int], needs: tuple[object, ...]
) -> None:
    name = options.split()[0] + (" local" if options.endswith("local") else "")
    [reason] = reasons(options, **refused)
    assert mentions(reason, name, *needs)
    assert reasons(options, **taken) == []


@pytest.mark.parametrize(
    ("kind", "number"), [("local", 1), ("transformer_engine", 1), ("full_iteration", 0), ("none", 0)]
)
def test_cuda_graphs_of_a_whole_iteration_may_recompute(kind: str, number: int) -> None:
    assert len(reasons(f"--cuda-graph-impl {kind}", recompute="full/uniform")) == number


def test_a_switch_that_is_absent_or_off_asks_nothing() -> None:
    assert switches_in(MegatronArgs.of(["--bf16"])) == ()
    assert switches_in(MegatronArgs.of(["--cpu-offloading-num-layers", "0"])) == ()
    assert switches_in(MegatronArgs.of(["--transformer-impl", "transformer_engine"])) == ()
