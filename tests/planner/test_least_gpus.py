"""The least number of GPUs that fit, and the longest sequence."""

from __future__ import annotations

from typing import Any

import pytest

import zenith_tune
from tests.plan_runs import LLAMA, Plan, as_json, planning
from zenith_tune.units import GIB

STATES = 18
"""Bytes per parameter of mixed precision with Adam (Rajbhandari et al. 2020)."""


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.mark.parametrize(("model", "batch", "least"), [("llama3-8b", 64, 2), ("llama3-70b", 512, 24)])
def test_a_kind_of_gpu_alone_is_planned_on_as_few_as_fit(model: str, batch: int, least: int, plan: Plan) -> None:
    job: dict[str, Any] = {"gbs": batch, "seq": 8192, "top": 1}
    found = zenith_tune.plan(model, "h100", **job)
    assert found.cluster.num_gpus == least and found.best
    assert least >= STATES * found.model.num_params / (79.11 * GIB)
    fewer = least // 2 if least <= 8 else least - 8
    assert not zenith_tune.plan(model, f"h100x{fewer}", max_tp=8, **job).best
    words = ("--model", model, "--cluster", "h100", "--gbs", str(batch), "--seq", "8192")
    assert as_json(plan(*words, "--json"))["least_gpus"] == least
    assert f"takes {least} GPUs" in plan(*words).out


def test_where_nothing_fits_the_least_number_that_would_is_found(plan: Plan) -> None:
    words = ("--model", "llama3-70b", "--gbs", "512", "--seq", "8192", "--json", "--max-tp", "8")
    assert '"enough_gpus": 24' in plan(*words, "--cluster", "h100x8").out


def test_one_layout_is_explained_on_a_number_of_gpus_alone(plan: Plan) -> None:
    done = plan("--model", "llama3-8b", "--cluster", "h100", "--gbs", "64", "--seq", "8192", "--explain", "TP2")
    assert done.code == 2 and "how many GPUs" in done.err


def test_the_longest_sequence_fits_and_an_eighth_more_does_not(plan: Plan) -> None:
    longest = as_json(plan(*LLAMA, "--longest", "--json"))["longest_seq_len"]
    assert longest > 100_000 and f"{longest:,} tokens" in plan(*LLAMA, "--longest").out
    assert zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=longest, top=1).best
    more = longest + 2 ** ((longest - 1).bit_length() - 1) // 8
    assert not zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=more, top=1).best


def test_a_sequence_that_is_too_long_is_shortened_until_it_fits(plan: Plan) -> None:
    words = ("--model", "llama3-8b", "--cluster", "h100x2", "--gbs", "2", "--longest", "--json")
    done = plan(*words, "--seq", "1048576")
    from_below = as_json(plan(*words, "--seq", "4096"))["longest_seq_len"]
    assert done.code == 1 and f'"longest_seq_len": {from_below}' in done.out
