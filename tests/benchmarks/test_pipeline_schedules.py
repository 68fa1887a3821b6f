"""The planner's schedules against those that others measured."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.data_folder import measured_data
from tests.requirements import skip

sys.path.insert(0, str(ROOT / "benchmarks"))

from pipeline_schedules import errors, judge, report


@pytest.mark.own_environment
def test_schedules_gain_and_cost_what_primus_measured() -> None:
    found = sorted(measured_data().glob("**/primus_*.csv"))
    if not found:
        skip("primus", "ZENITHTUNE_DATA has no primus_*.csv")
    rows = list(judge(found[0]))
    for name in ("speedup", "growth"):
        assert np.median(errors(rows, name)) < 0.04 and max(errors(rows, name)) < 0.1, name
    # The one that ran out of memory needs most.
    assert max(rows, key=lambda row: row.growth[0] * (row.model != rows[0].model)).measured_step_s is None


def test_only_schedules_that_the_planner_knows_are_judged(tmp_path: Path) -> None:
    columns = {"n_gpus": 8, "num_layers": 16, "hidden": 4096, "ffn_hidden": 11008, "num_heads": 32, "vocab": 32000}
    columns |= {"seq_len": 4096, "pp": 8, "mbs": 1, "gbs": 32, "tokens_per_s_per_gpu": 10_000, "mem_per_gpu_gib": 16}
    names = [("1f1b", 1), ("v-min", 2), ("zbv", 2)]
    head = ",".join(("source_id", "framework", "gpu", "model", "vp", *columns, "notes"))
    values = ",".join(map(str, columns.values()))
    lines = [f"made,megatron,H100,Llama 2 7B,{vp},{values},schedule={name}" for name, vp in names]
    path = tmp_path / "primus_made.csv"
    path.write_text("\n".join((head, *lines)))
    rows = list(judge(path))
    assert [row.schedule for row in rows] == ["1f1b", "zbv"]
    assert rows[1].speedup[0] > 1.1 and rows[1].growth[0] > 1.1
    assert rows[1].speedup[1] == rows[1].growth[1] == pytest.approx(1)
    assert "zbv" in report(rows)
