from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import zenith_tune
from tests.plan_runs import LLAMA, as_json, planning
from zenith_tune import JobSpec, Layout, Plan, Planner, UsageError, load_cluster, load_framework, load_model
from zenith_tune.calibrate.calibration_file import default_calibration, save_calibration
from zenith_tune.layouts.layout import layout_name

SHORT = 200
"""Characters of a line that one reads at a glance."""


@pytest.fixture(scope="module")
def found() -> Plan:
    return zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=4096)


def test_names_and_objects_give_the_same_plan(found: Plan) -> None:
    given = zenith_tune.plan(load_model("llama3-8b"), load_cluster("h100x8"), gbs=64, seq=4096)
    assert [each.layout for each in given.best] == [each.layout for each in found.best]


def test_a_plan_takes_the_options_of_the_command_line() -> None:
    fixed = zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=4096, fix="tp=4", max_pp=1, top=3)
    assert {each.layout.tp for each in fixed.best} == {4} and {each.layout.pp for each in fixed.best} == {1}
    assert len(fixed.best) == 3
    same = zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=4096, fix={"tp": 4}, max_pp=1, top=3)
    assert same.best == fixed.best


def test_an_estimate_is_that_of_the_plan_by_text_or_by_layout(found: Plan) -> None:
    best = found.best[0]
    for layout in (best.layout, best.name):
        one = zenith_tune.estimate("llama3-8b", "h100x8", layout, gbs=64, seq=4096)
        assert (one.layout, one.step_s, one.memory_bytes) == (best.layout, best.step_s, best.memory_bytes)


@pytest.mark.parametrize(
    "layout", ["TP3", "TP8 QQ2", "", Layout(num_gpus=16, global_batch=64), Layout(num_gpus=8, global_batch=3)]
)
def test_a_layout_that_cannot_be_is_refused(layout: Layout | str) -> None:
    with pytest.raises(UsageError):
        zenith_tune.estimate("llama3-8b", "h100x8", layout, gbs=64, seq=4096)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gbs": 0},
        {"gbs": "64"},
        {"seq": None},
        {"precision": "bf17"},
        {"dispatcher": "mail"},
        {"imbalance": -1},
        {"risk": 0},
        {"framework": "megatrn"},
        {"space": "some"},
        {"fix": {"tpp": 2}},
        {"calibration": "missing.json"},
    ],
)
def test_a_mistake_is_a_usage_error(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        zenith_tune.plan("llama3-8b", "h100x8", **{"gbs": 64, "seq": 4096, **wrong})  # type: ignore[arg-type]


def test_a_calibration_of_another_framework_is_warned_of(tmp_path: Path) -> None:
    save_calibration(default_calibration("deepspeed"), tmp_path / "c.json")
    for given in (tmp_path / "c.json", default_calibration("deepspeed")):
        with pytest.warns(UserWarning, match="deepspeed"):
            zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=4096, calibration=given)


def test_the_planner_takes_names_and_single_layouts() -> None:
    planner = Planner("llama3-8b", "h100x8", JobSpec(seq_len=4096, framework=load_framework("megatron")))
    layout = Layout(num_gpus=8, tp=2, zero=1, sequence_parallel=True, global_batch=64)
    one = planner.estimate(layout)
    assert len(one) == 1 and one.step_s[0] == planner.evaluate([layout])[0].step_s
    with pytest.raises(UsageError):
        planner.estimate("TP2")
    assert len(repr(planner)) < SHORT and len(repr(one)) < SHORT


def test_reprs_are_short_and_name_what_matters(found: Plan) -> None:
    best = found.best[0]
    assert len(repr(found)) < SHORT and best.name in repr(found) and "llama3-8b" in repr(found)
    assert len(repr(best)) < SHORT and best.name in repr(best)
    assert eval(repr(best.layout)) == best.layout
    assert len(repr(Layout(num_gpus=8))) < 30


def test_a_notebook_shows_a_plan_as_a_table(found: Plan) -> None:
    table = found._repr_html_()
    assert table.count("<tr>") == len(found.best) + 1
    assert all(layout_name(each.layout) in table for each in found.best)


def test_a_notebook_shows_an_estimate_as_its_parts(found: Plan) -> None:
    best = found.best[0]
    shown = best._repr_html_()
    parts = [part for part in (*best.time_parts.values(), *best.memory_parts.values()) if part]
    assert shown.count("<tr>") == len(parts) + 2 and best.name in shown


def test_a_plan_is_a_table(found: Plan) -> None:
    table = found.to_dataframe()
    assert list(table["name"]) == [each.name for each in found.best]
    assert list(table["tp"]) == [each.layout.tp for each in found.best]
    assert (table["step_low_s"] < table["step_s"]).all() and (table["step_s"] < table["step_high_s"]).all()
    parts = [f"{name}_s" for name in found.best[0].time_parts]
    assert list(table[parts].sum(axis=1)) == pytest.approx(list(table["step_s"]))


def test_the_function_stays_a_function_whatever_is_imported_first() -> None:
    program = (
        "import sys, zenith_tune\n"
        "assert not {'numpy', 'optuna', 'rich'} & set(sys.modules)\n"
        "import zenith_tune.estimates.memory, zenith_tune.planner.planner\n"
        "from zenith_tune import estimate\n"
        "assert callable(estimate) and callable(zenith_tune.estimate)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)


def test_command_line_and_function_plan_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(planning(capsys)(*LLAMA, "--top", "2", "--json"))
    same = zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=8192, top=2)
    assert [each["name"] for each in shown["best"]] == [each.name for each in same.best]
