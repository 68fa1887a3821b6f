"""The equations of docs/planner-equations.md, evaluated as the page writes them, against the planner's breakdown."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from tests.conftest import ROOT
from zenith_tune import JobSpec, Planner, load_cluster, load_framework, load_model
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of

PAGE = (ROOT / "docs" / "planner-equations.md").read_text()
LAYOUT = Layout(num_gpus=64, tp=8, pp=4, global_batch=512, micro_batch=1, zero=1, sequence_parallel=True)
GIB = 2**30


@pytest.fixture(scope="module")
def planner() -> Planner:
    job = JobSpec(seq_len=8192, framework=load_framework("megatron"))
    return Planner(load_model("llama3-70b"), load_cluster("h100x64"), job)


@pytest.fixture(scope="module")
def by_hand(planner: Planner) -> dict[str, float]:
    """Run the page's own Python with the coefficients of the calibration that it names."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    time = planner.calibration.time
    values = asdict(time.coefficients_for(gpu="h100", precision="bf16", framework="megatron"))
    exec(code, values)
    return values


@pytest.mark.parametrize("part", ["weights", "gradients", "optimizer", "activations"])
def test_the_memory_that_the_page_reckons_is_the_planners(
    part: str, planner: Planner, by_hand: dict[str, float]
) -> None:
    estimate = planner.estimate(batch_of([LAYOUT]))
    assert by_hand[part] == pytest.approx(float(estimate.memory_parts[part][0]), rel=1e-6)


@pytest.mark.parametrize(("name", "part"), [("compute", "compute"), ("tensor", "tp"), ("bubble", "bubble")])
def test_the_time_that_the_page_reckons_is_the_planners(
    name: str, part: str, planner: Planner, by_hand: dict[str, float]
) -> None:
    estimate = planner.estimate(batch_of([LAYOUT]))
    assert by_hand[name] == pytest.approx(float(estimate.time_parts[part][0]), rel=1e-6)


def test_the_figures_in_the_pages_words_are_those_of_its_equations(by_hand: dict[str, float]) -> None:
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
