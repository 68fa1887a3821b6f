"""Landscapes are checked as they are read, noise is drawn from what was measured, and tables become landscapes."""

from __future__ import annotations

import copy
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutbench.build import START_UP_S, build, landscapes_of
from layoutbench.cli import main
from layoutbench.landscape import (
    SHIPPED,
    LandscapeError,
    Layout,
    Run,
    load_landscapes,
    parse_landscape,
    read_landscape,
    write_landscape,
)
from tests.conftest import ROOT
from tests.data_folder import measured_data
from tests.layoutbench.standin import BEST, content

sys.path.insert(0, str(ROOT / "benchmarks"))

from layoutbench_h200 import convert


def test_a_landscape_is_written_as_it_was_read(tmp_path: Path) -> None:
    landscape = parse_landscape(content())
    write_landscape(landscape, tmp_path / "one.json")
    assert read_landscape(tmp_path / "one.json") == landscape
    assert min(landscape.layouts, key=lambda layout: layout.step_s).params == BEST


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("schema",), "other/1", "schema"),
        (("name",), "", "name"),
        (("model", "layers"), 0, "model.layers"),
        (("source", "licence"), None, "source.licence"),
        (("cluster", "num_gpus"), True, "cluster.num_gpus"),
        (("axes",), [], "axes"),
        (("axes", "tp"), [1, 2], "tp"),
        (("used_for_fitting",), None, "used_for_fitting"),
        (("layouts",), [], "layouts"),
        (("layouts", 0, "params"), {"tp": 1}, "axis"),
        (("layouts", 1, "params"), {"tp": 1, "mbs": 1}, "twice"),
        (("layouts", 0, "runs"), [], "runs"),
        (("layouts", 0, "runs", 0, "outcome"), "fine", "outcome"),
        (("layouts", 0, "runs", 0, "steps_s"), [-1.0], "steps_s"),
        (("layouts", 0, "runs", 0, "steps_s"), [], "steps_s"),
        (("layouts", 0, "runs", 0, "cost_s"), None, "cost_s"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    place: tuple[str | int, ...], value: Any, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(content())
    inner: Any = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "wrong.json").write_text(json.dumps(changed))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path)])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and "wrong.json" in line and named in line


def test_two_landscapes_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(content()))
    with pytest.raises(LandscapeError, match="stand-in"):
        load_landscapes([tmp_path])


def test_noise_is_drawn_from_runs_and_their_steps_with_a_seed() -> None:
    good = Run(outcome="ok", steps_s=(1.0, 1.2, 1.4), cost_s=9.0)
    layout = Layout(params={}, runs=(good, Run(outcome="oom", cost_s=3.0)))
    drawn = [layout.draw(np.random.default_rng([seed, 0])) for seed in range(60)]
    assert {result.outcome for result in drawn} == {"ok", "oom"}
    assert {result.step_s for result in drawn} == {None, 1.0, 1.2, 1.4}
    assert drawn == [layout.draw(np.random.default_rng([seed, 0])) for seed in range(60)]
    assert layout.step_s == 1.2 and layout.cost_s == 6.0


def test_the_landscapes_that_ship_have_three_models_with_twenty_layouts_and_noise() -> None:
    own = [item for item in load_landscapes([SHIPPED]) if item.source["id"] == "h200_landscapes"]
    assert len({item.model["name"] for item in own}) >= 3
    for item in own:
        assert set(item.axes) == {"mbs", "recompute", "attention", "optimizer"} and len(item.layouts) >= 20
        assert any(len(set(run.steps_s)) > 1 for layout in item.layouts for run in layout.runs)
        assert item.used_for_fitting == ("zenithtune-packaged-calibration",)


def test_the_sweep_on_an_h200_becomes_the_landscapes_that_ship(tmp_path: Path) -> None:
    table = ROOT / "benchmarks" / "results" / "h200-landscapes-2026-11-17.csv"
    for path in convert(table, tmp_path):
        assert read_landscape(path) == read_landscape(SHIPPED / path.name)


ROW = {
    "source_id": "ultrascale_playbook",
    "source_url": "https://example.org",
    "year": "2025",
    "framework": "nanotron",
    "gpu": "H100",
    "gpu_mem_gib": "80",
    "n_gpus": "8",
    "model": "m",
    "num_layers": "2",
    "hidden": "64",
    "num_heads": "4",
    "seq_len": "128",
    "mbs": "1",
    "gbs": "16",
    "outcome": "ok",
    "zero_stage_or_fsdp": "ZeRO-1",
}


def test_rows_of_one_model_become_a_landscape_with_repeats_and_the_lines_they_came_from(tmp_path: Path) -> None:
    rows = [ROW | {"tp": str(tp), "mbs": str(mbs), "step_time_s": "2.0"} for tp in (1, 2) for mbs in (1, 2)]
    rows += [rows[0] | {"step_time_s": "3.0"}, ROW | {"tp": "8", "outcome": "oom"}]
    rows += [ROW | {"tp": "4", "step_time_s": "1.0", "notes": "FLAG: doubtful"}, ROW | {"source_id": "elsewhere"}]
    table = _write(rows, tmp_path / "runs.csv")
    (landscape,) = landscapes_of(table)
    assert landscape.axes == {"tp": [1, 2, 8], "mbs": [1, 2]} and landscape.job["zero"] == 1
    assert landscape.source["rows"] == "runs.csv, lines 2-7"
    by_tp = {(layout.params["tp"], layout.params["mbs"]): layout for layout in landscape.layouts}
    assert [run.steps_s for run in by_tp[1, 1].runs] == [(2.0,), (3.0,)]
    assert by_tp[8, 1].runs[0].outcome == "oom" and by_tp[8, 1].cost_s == START_UP_S


def test_steps_of_other_micro_batches_are_compared_by_the_time_of_the_same_samples(tmp_path: Path) -> None:
    rows = [ROW | {"mbs": str(mbs), "gbs": "", "step_time_s": "1.0"} for mbs in (1, 2, 4, 8, 16)]
    (landscape,) = landscapes_of(_write(rows, tmp_path / "runs.csv"))
    assert [layout.step_s for layout in landscape.layouts] == [16, 8, 4, 2, 1]


def test_the_published_landscapes_can_be_built(tmp_path: Path) -> None:
    paths = build(measured_data(), tmp_path)
    landscapes = load_landscapes([tmp_path])
    assert len(landscapes) == len(paths) >= 17
    assert all("not redistributed" in item.source["licence"] for item in landscapes)


def _write(rows: list[dict[str, str]], path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list({name: None for row in rows for name in row}))
        writer.writeheader()
        writer.writerows(rows)
    return path
