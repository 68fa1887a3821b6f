from __future__ import annotations

import pytest

from tests.doctor.runs import run_of
from zenith_tune.doctor.diagnosed_run import Measured
from zenith_tune.doctor.diagnosis import diagnose, diagnosis_lines
from zenith_tune.errors import UsageError
from zenith_tune.units import GIB

OOM = Measured(out_of_memory=True, cause="CUDA out of memory")


def test_a_good_run_is_healthy_by_its_figures() -> None:
    found = diagnose(run_of("TP2 mbs1 SP Z1"))
    assert found.is_healthy and found.advice == () and found.remedies == ()
    assert "compute 95%" in found.all_clear and "73% of GPU memory" in found.all_clear


def test_what_brings_most_comes_first() -> None:
    found = diagnose(run_of("TP2 PP4 mbs1 SP Z1 selective", gbs=8))
    assert [advice.name for advice in found.advice] == ["pipeline_bubble", "idle_recompute"]
    assert found.advice[0].gain > found.advice[1].gain and not found.is_healthy


def test_an_out_of_memory_with_a_pipeline_has_each_way_out_with_its_cost() -> None:
    run = run_of("TP2 PP2 mbs4 SP", measured=OOM)
    found = diagnose(run)
    ways = {remedy.name: remedy for remedy in found.remedies}
    assert set(ways) == {"more micro-batches", "recomputation", "sharding", "tensor parallelism"}
    for remedy in found.remedies:
        assert remedy.planned is not None and remedy.cost is not None
        if remedy.fits:
            assert remedy.cost == pytest.approx(run.step_s(remedy.planned) / run.planned.roomy_s - 1)
            assert remedy.planned.oom_probability < run.risk
    assert ways["more micro-batches"].change == "mbs 4 -> 2" and ways["more micro-batches"].fits
    assert "zero 0 -> 1" in ways["sharding"].change and "tp 2 -> 4" in ways["tensor parallelism"].change
    assert ways["recomputation"].cost is not None and ways["recomputation"].cost > 0
    assert found.advice == () and found.way_out is None


def test_ways_that_fit_come_first_and_those_that_are_not_to_be_had_say_why() -> None:
    found = diagnose(run_of("TP2 PP4 mbs1 SP Z1 full", measured=OOM))
    assert [remedy.fits for remedy in found.remedies] == sorted(
        (remedy.fits for remedy in found.remedies), reverse=True
    )
    why = {remedy.name: remedy.why_not or "" for remedy in found.remedies}
    assert "micro-batch is 1" in why["more micro-batches"] and "recomputed" in why["recomputation"]
    assert "one data-parallel rank" in why["sharding"] and "every GPU" in why["tensor parallelism"]


def test_ways_that_a_rule_forbids_say_which_one() -> None:
    found = diagnose(run_of("TP2 EP8 mbs1 Z1 selective", model="qwen3-30b-a3b", measured=OOM))
    why = {remedy.name: remedy.why_not or "" for remedy in found.remedies}
    for name, tp in (("recomputation", 2), ("tensor parallelism", 4)):
        assert "sequence parallelism" in why[name] and f"got tp {tp}" in why[name]
    assert "sharded" in why["sharding"]


def test_tensor_parallelism_is_no_way_out_where_nvlink_does_not_reach() -> None:
    found = diagnose(run_of("PP4 mbs2 Z1", cluster="l40sx8", seq_len=8192, measured=OOM))
    (wider,) = (remedy for remedy in found.remedies if remedy.name == "tensor parallelism")
    assert not wider.fits and "no NVLink" in str(wider.why_not)


def test_where_no_single_change_is_enough_the_fastest_layout_that_fits_is_named() -> None:
    run = run_of("TP4 PP4 mbs2 SP", model="llama3-70b", cluster="h100x64", gbs=512)
    found = diagnose(run)
    assert not any(remedy.fits for remedy in found.remedies)
    assert found.way_out is not None and found.way_out.oom_probability < run.risk
    assert found.way_out.layout.tp <= 8


def test_a_model_that_is_too_large_for_its_gpus_has_no_way_out() -> None:
    found = diagnose(run_of("TP8 PP2 mbs1 SP Z1", model="llama3-405b", cluster="h100x16"))
    assert found.way_out is None and found.remedies and not any(remedy.fits for remedy in found.remedies)


def test_a_run_that_went_well_has_no_remedies_whatever_the_plan_feared() -> None:
    feared = run_of("TP2 PP4 mbs4 SP Z1")
    assert not feared.trains and diagnose(feared).remedies
    went_well = run_of("TP2 PP4 mbs4 SP Z1", measured=Measured(step_s=9.0, peak_bytes=70e9))
    assert diagnose(went_well).remedies == ()


def test_a_run_that_ran_out_although_the_plan_had_room_needs_a_change_that_saves_a_tenth() -> None:
    run = run_of("TP8 PP4 mbs1 SP Z1", model="llama3-70b", cluster="h100x64", gbs=512, measured=OOM)
    assert run.planned.oom_probability < run.risk
    fitting = [remedy.planned for remedy in diagnose(run).remedies if remedy.fits]
    assert fitting and all(each and each.memory_bytes <= 0.9 * run.planned.memory_bytes for each in fitting)


def test_a_run_that_ran_out_as_planned_needs_no_more_than_what_fits() -> None:
    run = run_of("TP2 PP2 mbs4 SP", measured=OOM)
    assert run.planned.memory_bytes > run.planned.capacity_bytes
    (smaller,) = (remedy for remedy in diagnose(run).remedies if remedy.name == "more micro-batches")
    assert smaller.fits and smaller.planned is not None
    assert 0.9 * run.planned.capacity_bytes < smaller.planned.memory_bytes < run.planned.capacity_bytes


@pytest.mark.parametrize(
    ("capacity", "is_refused"),
    [("79.10", False), ("79.33", False), ("139.80", True), ("39.39", True), ("1.2.3", False)],
)
def test_a_run_that_ran_out_on_a_gpu_of_another_size_is_refused(capacity: str, is_refused: bool) -> None:
    cause = f"CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of {capacity} GiB"
    said = Measured(out_of_memory=True, cause=cause)
    if not is_refused:
        assert run_of("TP2 PP2 mbs4 SP", measured=said).measured is said
        return
    with pytest.raises(UsageError) as caught:
        run_of("TP2 PP2 mbs4 SP", measured=said)
    for part in (f"{float(capacity):.1f} GiB", "h100x8", "79.1 GiB"):
        assert part in caught.value.problem
    assert "--cluster" in caught.value.hint


@pytest.mark.parametrize("cluster", ["h100x2", "h100x64"])
def test_plain_data_parallelism_that_does_not_fit_is_sharded_and_not_given_more_gpus(cluster: str) -> None:
    found = diagnose(run_of("mbs4", cluster=cluster, gbs=256, seq_len=2048, framework="hf-accelerate"))
    (sharding,) = (remedy for remedy in found.remedies if remedy.name == "sharding")
    assert sharding.fits and sharding.planned is not None and sharding.planned.layout.zero == 3
    assert sharding.planned.memory_bytes < 79.1 * GIB and sharding.cost is not None and sharding.cost > -0.15
    (line,) = (line for line in diagnosis_lines(found) if "sharding" in line)
    assert line.startswith("  fits") and "FSDP or ZeRO-3" in line and "zero 0 -> 3" in line


def test_a_model_that_no_sharding_makes_fit_is_not_helped_by_more_copies() -> None:
    found = diagnose(run_of("mbs1", model="llama3-70b", cluster="h100x2", seq_len=2048, framework="hf-accelerate"))
    (line,) = (line for line in diagnosis_lines(found) if "every GPU" in line)
    assert "FSDP or ZeRO-3" in line and "more of them" not in line


def test_a_layout_that_does_not_divide_its_gpus_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"n_gpus .*8 % .3\*1\*1 = 3") as caught:
        run_of("TP3")
    assert "\n" not in str(caught.value)
