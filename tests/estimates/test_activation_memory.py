from __future__ import annotations

import pytest

from tests.estimates.memory_cases import gpt, llama, memory_of
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.activation_memory import AHEAD
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_BLOCK,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_UNIFORM,
)
from zenith_tune.units import GIB

# Korthikanti et al. 2022, arXiv 2205.05198, table 3 and figure 1: model, pp, vp, micro-batch; GiB of activations per
# GPU with tensor parallelism alone, and with sequence parallelism and selective recomputation.
FIGURE_1 = [
    pytest.param(gpt("22b", 48, 6144, 64), 1, 1, 4, 59.25, 9.5625, id="22B"),
    pytest.param(gpt("175b", 96, 12288, 96), 8, 3, 1, 66.84375, 12.3515625, id="175B"),
    pytest.param(gpt("530b", 105, 20480, 128), 35, 3, 1, 114.0234375, 23.076171875, id="530B"),
    pytest.param(gpt("1t", 128, 25600, 160), 64, 1, 1, 131.25, 26.5625, id="1T"),
]


def activations(model: ModelSpec, **layout: int | bool) -> float:
    """Return what waits on the first stage of a GPT with dropout and unfused attention."""
    layout = {"flash_attention": False, "gbs": 2240 * layout["mbs"]} | layout
    return float(memory_of(model, "megatron-ci", layout, stage=0.0).parts["activations"][0])


@pytest.mark.parametrize(("model", "pp", "vp", "mbs", "tensor", "_"), FIGURE_1)
def test_activations_with_tensor_parallelism_match_korthikanti_figure_1(
    model: ModelSpec, pp: int, vp: int, mbs: int, tensor: float, _: float
) -> None:
    assert activations(model, tp=8, pp=pp, vp=vp, mbs=mbs) / GIB == pytest.approx(tensor, rel=0.02)


@pytest.mark.parametrize(("model", "pp", "vp", "mbs", "_", "selective"), FIGURE_1)
def test_activations_with_selective_recomputation_match_korthikanti_figure_1(
    model: ModelSpec, pp: int, vp: int, mbs: int, _: float, selective: float
) -> None:
    found = activations(model, tp=8, pp=pp, vp=vp, mbs=mbs, sequence_parallel=True, recompute=RECOMPUTE_SELECTIVE)
    assert found / GIB == pytest.approx(selective, rel=0.01)


def test_one_layer_is_korthikantis_equation_1() -> None:
    model = gpt("one", 1, 512, 8)
    s, b, h, a = 2048, 3, 512, 8
    assert activations(model, mbs=b) == pytest.approx(34 * s * b * h + 5 * a * s**2 * b, rel=1e-3)


def test_one_layer_is_korthikantis_equation_2_with_tensor_and_4_with_sequence_parallelism() -> None:
    model = gpt("one", 1, 512, 8)
    s, b, h, a, t = 2048, 3, 512, 8, 4
    tensor = s * b * h * (10 + 24 / t + 5 * a * s / (h * t))
    sequence = s * b * h * (34 + 5 * a * s / h) / t
    assert activations(model, mbs=b, tp=t) == pytest.approx(tensor, rel=1e-3)
    assert activations(model, mbs=b, tp=t, sequence_parallel=True) == pytest.approx(sequence, rel=1e-3)


def test_full_recomputation_keeps_the_inputs_of_layers_or_of_chunks_of_layers() -> None:
    model = gpt("eight", 8, 512, 8)
    one = 2 * 2048 * 512
    for layers, kept in ((1, 8), (2, 4), (3, 3), (8, 1)):
        found = activations(model, mbs=1, recompute=RECOMPUTE_UNIFORM, recompute_layers=layers)
        assert found == pytest.approx(kept * one)


def test_blocks_recompute_the_first_layers_and_keep_the_others() -> None:
    model = gpt("eight", 8, 512, 8)
    whole = activations(model, mbs=1, recompute=RECOMPUTE_NONE) / 8
    found = activations(model, mbs=1, recompute=RECOMPUTE_BLOCK, recompute_layers=3)
    assert found == pytest.approx(5 * whole + 3 * 2 * 2048 * 512)


def test_context_parallelism_halves_activations() -> None:
    model = gpt("eight", 8, 512, 8)
    flash = {"mbs": 2, "flash_attention": True}
    assert activations(model, cp=2, **flash) == pytest.approx(activations(model, **flash) / 2)


@pytest.mark.parametrize(
    ("layout", "num_layers"),
    [
        pytest.param({"tp": 4}, 8 * AHEAD, id="no stage to wait for"),
        pytest.param({"tp": 4, "pp": 2}, 0, id="its neighbour has both"),
        pytest.param({"tp": 4, "pp": 8}, 2 * 6, id="two layers, dealt by cost, of all micro-batches but two"),
        pytest.param({"tp": 1, "pp": 8}, 0, id="nothing is gathered"),
        pytest.param({"tp": 4, "pp": 8, "dp": 16}, 0, id="a network that waits"),
        pytest.param({"tp": 4, "pp": 8, "dp": 2, "zero": 0}, 0, id="one whose gradients are all-reduced"),
        pytest.param({"tp": 4, "dp": 16, "zero": 0}, 8 * AHEAD, id="without a pipeline"),
    ],
)
def test_what_was_gathered_lingers_while_the_host_is_ahead(layout: dict[str, int], num_layers: float) -> None:
    at = {"zero": 1, "mbs": 2, "gbs": 2 * 64 * layout.get("dp", 1), "sequence_parallel": True} | layout
    found, waiting = (
        float(memory_of(llama(num_layers=8), name, at, stage=0.0).parts["activations"][0])
        for name in ("nanotron", "nanotron-waiting")
    )
    assert found - waiting == pytest.approx(4 * 1024 * 2 * 2048 * num_layers)
