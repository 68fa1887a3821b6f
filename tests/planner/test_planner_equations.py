"""The equations of docs/planner-equations.md, worked through for one layout, against the planner's breakdown."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from zenith_tune import JobSpec, Planner, load_cluster, load_framework, load_model
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of

PAGE = (ROOT / "docs" / "planner-equations.md").read_text()
LAYOUT = Layout(num_gpus=64, tp=8, pp=4, global_batch=512, micro_batch=1, zero=1, sequence_parallel=True)
GIB = 2**30


def by_the_equations(c: TimeCoefficients) -> dict[str, float]:
    """Compute the page's example in its symbols, by its equations and the coefficients of the calibration."""
    h, f, q, kv, v, a, vocabulary = 8192, 28672, 8192, 2 * 8 * 128, 8192, 64, 128256
    tp, pp, dp, m, layers, t = 8, 4, 2, 512 // 2, 80, 8192

    # Memory of stage 0: 20 layers and the embedding, whose share of the vocabulary is padded to a multiple of 128.
    stage = layers // pp
    matrices = (h * (q + kv) + v * h + 3 * h * f) / tp + 2 * h
    table = -(-vocabulary // (tp * 128)) * 128 * h
    params = stage * matrices + table
    weights, gradients, optimizer = 2 * params, 4 * params, 12 * params / dp
    layer = t * ((4 * h + 4 * q + 3 * kv + 2 * v + 4 * a) / tp + (4 * h + 6 * f) / tp)
    activations = stage * min(m, pp) * layer

    # Time: all layers of a rank, all micro-batches; rates of an H100 and coefficients of the package's calibration.
    times = layers * m / pp
    ring = (1.90 + 1.26 * (tp - 1)) * 5e-6 + 2 * t * h * (tp - 1) / tp / (450e9 * c.fast_efficiency)
    tensor = 8 * ring * c.tensor_exposed * times
    flops, memory = 989.4e12 * c.gemm_efficiency, 3350e9 * c.memory_efficiency
    products = (h * (q + kv) + v * h + 3 * h * f) / tp * (6 * t / flops + 14 / memory)
    attention = 3 * t * 8192 * (q + v) / tp / (989.4e12 * c.attention_efficiency)
    rest = (t * h * c.hidden_passes + t * f * c.ffn_passes) / tp / memory
    head = (vocabulary * h * (6 * t / flops + 14 / memory) + t * vocabulary * c.logit_passes / memory) / tp
    compute = (products + attention + rest) * times + head * m / pp

    # The bubble: all stages have 20 layers, and the last one also the loss.
    work = products + attention + rest + tensor / times
    launches = c.layer_launch_s + c.tensor_launch_s + c.stage_wait_s * tp
    layer_s = (work**4 + launches**4) ** 0.25
    slowest, through = stage * layer_s + head, layers * layer_s + head
    bubble = m * slowest + through - slowest - through * m / pp
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "compute": compute,
        "tensor": tensor,
        "bubble": bubble,
    }


@pytest.fixture(scope="module")
def planner() -> Planner:
    job = JobSpec(seq_len=8192, framework=load_framework("megatron"))
    return Planner(load_model("llama3-70b"), load_cluster("h100x64"), job)


@pytest.fixture(scope="module")
def by_hand(planner: Planner) -> dict[str, float]:
    time = planner.calibration.time
    return by_the_equations(time.coefficients_for(gpu="h100", precision="bf16", framework="megatron"))


@pytest.mark.parametrize("part", ["weights", "gradients", "optimizer", "activations"])
def test_the_memory_that_the_equations_give_is_the_planners(
    part: str, planner: Planner, by_hand: dict[str, float]
) -> None:
    estimate = planner.estimate(batch_of([LAYOUT]))
    assert by_hand[part] == pytest.approx(float(estimate.memory_parts[part][0]), rel=1e-6)


@pytest.mark.parametrize(("name", "part"), [("compute", "compute"), ("tensor", "tp"), ("bubble", "bubble")])
def test_the_time_that_the_equations_give_is_the_planners(
    name: str, part: str, planner: Planner, by_hand: dict[str, float]
) -> None:
    estimate = planner.estimate(batch_of([LAYOUT]))
    assert by_hand[name] == pytest.approx(float(estimate.time_parts[part][0]), rel=1e-6)


def test_the_pages_figures_are_those_of_its_equations(by_hand: dict[str, float]) -> None:
    words = (
        f"{by_hand['weights'] / GIB:.1f} GiB of weights, {by_hand['gradients'] / GIB:.1f} of gradients, "
        f"{by_hand['optimizer'] / GIB:.1f} of optimizer states and {by_hand['activations'] / GIB:.1f} of activations, "
        f"and to {by_hand['compute']:.1f} s of computing, {by_hand['tensor']:.1f} s of tensor-parallel traffic "
        f"and {by_hand['bubble']:.1f} s of bubble"
    )
    assert words in " ".join(PAGE.split())


def test_the_pages_scoreboard_is_that_of_the_benchmarks() -> None:
    scoreboard = (ROOT / "benchmarks" / "results" / "scoreboard.md").read_text()
    table = PAGE.partition("## Scoreboard")[2].partition("## What it cannot do")[0]
    figures = set(re.findall(r"\d+\.\d+%?", table)) - {"0.20", "0.9"}
    assert len(figures) > 10
    assert [figure for figure in sorted(figures) if figure not in scoreboard] == []
