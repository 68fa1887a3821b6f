"""The whole of it, small: tuners run by one protocol, are scored, and make a leaderboard."""

from __future__ import annotations

import ast
import csv
import json
import math
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import layoutbench
from layoutbench.cli import main
from layoutbench.export import export_csv, export_syne_tune
from layoutbench.landscape import SHIPPED, Landscape, load_landscapes, parse_landscape
from layoutbench.plots import line_plot
from layoutbench.protocol import Params, Problem, Result
from layoutbench.runner import Record, TunerError, load_tuner, run_all, run_tuner
from layoutbench.scores import all_scores, gpu_seconds_to, interval, regret_after, trials_to, tuner_scores
from layoutbench.tuners import BUILT_IN
from layoutbench.tuners.plain import Listed
from tests.conftest import ROOT
from tests.layoutbench.standin import BEST, content
from tests.requirements import need_module
from tests.started_processes import is_alive, start_process, wait_until

sys.path.insert(0, str(ROOT / "benchmarks"))

TUNER = """
class Upwards:
    settings = "stops after four crashes"
    def __init__(self, problem, seed):
        self.left = sorted(problem.layouts, key=lambda params: params["tp"] * params["mbs"])
        self.failed = 0
    def ask(self):
        print("secret", self.left[:1])
        return self.left.pop() if self.left and self.failed < 4 else None
    def tell(self, params, result):
        self.failed += result.outcome != "ok"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a user's tuner and one landscape, the current one."""
    (tmp_path / "my_tuner.py").write_text(TUNER)
    (tmp_path / "landscapes").mkdir()
    (tmp_path / "landscapes" / "one.json").write_text(json.dumps(content()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_tuner", raising=False)
    return tmp_path


def test_a_tuner_of_ten_lines_is_run_and_stands_on_the_leaderboard(folder: Path) -> None:
    run = ["run", "--landscapes", "landscapes", "--seeds", "2", "--output"]
    main([*run, "mine.json", "--tuner", "mine=my_tuner:Upwards"])
    main([*run, "random.json", "--tuner", "random"])
    main(["leaderboard", "mine.json", "random.json", "--output", "board-2026.01"])
    result = json.loads(Path("board-2026.01.json").read_text())
    mine = result["scores"]["mine"]
    # From the largest down: 4 x 8 and 2 x 8 crash, 4 x 4 is the best.
    assert mine["trials_to_1pct"]["mean"] == 2 and mine["gpu_seconds_to_1pct"]["mean"] == 4 * (5 + 10)
    assert mine["crash_gpu_seconds_to_1pct"]["mean"] == 4 * 5 and mine["regret_after_1"]["mean"] == 1.0
    assert mine["trials_until_stop"]["mean"] == 12
    assert "trials_until_stop" not in result["scores"]["random"]
    assert result["settings"] == {"mine": "stops after four crashes"}
    assert "mine: stops after four crashes" in Path("board-2026.01.md").read_text()
    assert {"mine", "random"} <= set(Path("board-2026.01.md").read_text().replace("|", " ").split())
    page = _Page(Path("board-2026.01.html").read_text())
    assert page.tags.count("svg") == 2 and not page.loads


class _Page(HTMLParser):
    """Collect the tags of a page, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]


def test_a_sealed_run_says_nothing_but_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "run",
            "--tuner",
            "my_tuner:Upwards",
            "--landscapes",
            "landscapes",
            "--seeds",
            "1",
            "--sealed",
            "--output",
            "s.json",
        ]
    )
    said = "".join(capsys.readouterr()) + Path("s.json").read_text()
    assert "stand-in" not in said and "secret" not in said
    result = json.loads(Path("s.json").read_text())
    assert result["scores"]["my_tuner:Upwards"]["trials_to_1pct"]["mean"] == 2 and "records" not in result
    main(["leaderboard", "s.json", "--output", "sealed"])
    assert "1 sealed" in Path("sealed.md").read_text()


@pytest.mark.parametrize("tuner", ["nothing", "my_tuner:Absent", "absent_module:Tuner"])
def test_a_tuner_that_is_not_there_is_one_line(tuner: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--tuner", tuner, "--landscapes", "landscapes"])
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_a_tuner_that_fails_is_named_with_its_landscape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken_tuner.py").write_text("class Broken:\n    def __init__(self, problem, seed):\n        1 / 0\n")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--tuner", "broken_tuner:Broken", "--landscapes", "landscapes"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and "stand-in" in line and "ZeroDivisionError" in line


class Scripted(Listed):
    """Ask for what a test lists, and keep the answers."""

    order: Sequence[Params] = ()

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(self.order)
        self.heard: list[Result] = []
        Scripted.last = self

    last: Scripted

    def tell(self, params: Params, result: Result) -> None:
        self.heard.append(result)


def _scripted(landscape: Landscape, *order: Params, seed: int = 0) -> tuple[Record, list[Result]]:
    Scripted.order = order
    record = run_tuner("scripted", Scripted, landscape, seed)
    return record, Scripted.last.heard


def test_asking_again_or_for_what_was_never_measured_costs_nothing() -> None:
    landscape = parse_landscape(content())
    record, heard = _scripted(landscape, BEST, BEST, {"tp": 3, "mbs": 1}, {"tp": 1, "mbs": 8})
    assert record.gpu_seconds == [40, 20] and record.crashed == [False, True] and record.num_free == 2
    assert heard[0] == heard[1] and [result.outcome for result in heard] == ["ok", "ok", "unrecorded", "oom"]
    assert record.stopped


def test_a_tuner_is_judged_by_what_looked_best_to_it() -> None:
    noisy = content()
    noisy["layouts"][0]["runs"] = [{"outcome": "ok", "steps_s": [step], "cost_s": 10.0} for step in (0.1, 9.0, 9.0)]
    landscape = parse_landscape(noisy)
    lucky = next(
        seed for seed in range(100) if landscape.layouts[0].draw(np.random.default_rng([seed, 0])).step_s == 0.1
    )
    record, _ = _scripted(landscape, BEST, {"tp": 1, "mbs": 1}, seed=lucky)
    assert record.regrets == [0, 9.0 / 1.25 - 1]


def test_the_best_layout_is_the_best_that_runs_with_the_seed() -> None:
    noisy = content()
    best = next(layout for layout in noisy["layouts"] if layout["params"] == BEST)
    best["runs"].append({"outcome": "error", "cost_s": 5.0})
    landscape = parse_landscape(noisy)
    records = [_scripted(landscape, BEST, {"tp": 4, "mbs": 2}, seed=seed)[0] for seed in range(20)]
    assert {tuple(record.crashed) for record in records} == {(False, False), (True, False)}
    assert all(record.regrets[-1] == 0 for record in records)


def test_every_tuner_meets_the_same_noise() -> None:
    landscape = load_landscapes([SHIPPED])[0]
    points = [layout.params for layout in landscape.layouts[:4]]
    _, forwards = _scripted(landscape, *points, seed=3)
    _, backwards = _scripted(landscape, *points[::-1], seed=3)
    _, other = _scripted(landscape, *points, seed=4)
    assert forwards == backwards[::-1] != other


def test_what_a_tuner_was_fitted_to_is_left_out() -> None:
    fitted = parse_landscape(content(used_for_fitting=["grid"]))
    other = parse_landscape(content(name="other"))
    records = run_all(["grid", "random"], [fitted, other], seeds=1)
    assert [(record.tuner, record.landscape) for record in records] == [
        ("grid", "other"),
        ("random", "stand-in"),
        ("random", "other"),
    ]


def test_a_tuner_learns_from_other_models_and_clusters_alone() -> None:
    same = parse_landscape(content(name="same model and cluster"))
    larger = parse_landscape(content(name="larger", model={"name": "toy", "layers": 4, "hidden": 64, "heads": 4}))
    problem = parse_landscape(content()).problem([same, larger])
    assert [item.name for item in problem.others] == ["larger"]
    assert not any("step" in str(name) for params in problem.layouts for name in params)


def _record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "tuner": "t",
        "landscape": "l",
        "source": "s",
        "seed": 0,
        "num_layouts": 10,
        "all_gpu_seconds": 100.0,
        "regrets": [math.inf, 0.5, 0.01],
        "gpu_seconds": [1.0, 2.0, 4.0],
        "crashed": [True, False, False],
    }
    return Record(**fields | changes)


def test_scores_are_what_they_say() -> None:
    record = _record()
    assert (trials_to(record), gpu_seconds_to(record)) == (3, 7.0)
    assert [regret_after(record, trials) for trials in (1, 2, 5)] == [1.0, 0.5, 0.01]
    never = _record(regrets=[0.5, 0.4, 0.3], stopped=True)
    assert (trials_to(never), gpu_seconds_to(never)) == (10, 100.0)
    scores = tuner_scores([never])
    assert scores["reached_1pct"]["mean"] == 0 and scores["gpu_seconds_until_stop"]["mean"] == 7
    assert scores["regret_at_stop"]["mean"] == 0.3
    cannot = _record(regrets=[], gpu_seconds=[], crashed=[], why_not="no")
    assert trials_to(cannot) == 10 and regret_after(cannot, 5) == 1.0


def test_a_plot_is_well_formed_and_has_a_line_per_curve() -> None:
    text = line_plot({"a < b": [1.0, 0.5, 0.1], "c": [0.2]}, [1, 2, 3], title="t & u", x_label="x", y_label="y")
    lines = ElementTree.fromstring(text).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2


def test_a_profile_is_the_share_of_searches_within_a_multiple_of_the_cheapest() -> None:
    cheap = [_record(tuner="cheap", landscape=name) for name in "ab"]
    dear = [
        _record(tuner="dear", landscape="a", gpu_seconds=[2.0, 4.0, 8.0]),
        _record(tuner="dear", landscape="b", regrets=[]),
    ]
    scores = all_scores([*dear, *cheap])
    assert list(scores) == ["cheap", "dear"]
    assert scores["cheap"]["profile"][0] == 1.0
    assert scores["dear"]["profile"][0] == 0.0 and scores["dear"]["profile"][-1] == 0.5


def test_an_interval_holds_the_mean_and_narrows_with_more_landscapes() -> None:
    few, many = interval([1.0, 3.0] * 3), interval([1.0, 3.0] * 100)
    assert few["low"] < few["mean"] == 2 < few["high"]
    assert many["high"] - many["low"] < (few["high"] - few["low"]) / 3


QUICK = ("random", "grid", "optuna-tpe")
PACKAGES = {
    "optuna-gp": ("scipy", "torch"),
    "optuna-cmaes": ("cmaes",),
    "smac": ("smac",),
    "boosted-ranker": ("sklearn",),
    "deepspeed-grid": ("deepspeed", "xgboost"),
    "deepspeed-model": ("deepspeed", "xgboost"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BUILT_IN]
)
def test_a_tuner_finds_the_best_layout(name: str) -> None:
    for package in PACKAGES.get(name, ()):
        need_module(name, package)
    landscape = parse_landscape(content())
    others = [parse_landscape(content(name="larger", model={"name": "toy", "layers": 4, "hidden": 64, "heads": 4}))]
    record = run_tuner(name, load_tuner(name), landscape, 0, others=others)
    assert min(record.regrets) == 0 or record.stopped
    assert record.num_free == 0 and len(record.regrets) > 5


@pytest.mark.parametrize("name", sorted({*BUILT_IN} - {"random", "grid"}))
def test_a_tuner_whose_package_is_missing_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = BUILT_IN[name].partition(":")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    for package in ("optuna", "ConfigSpace", "sklearn.ensemble", "xgboost"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(TunerError, match="pip install"):
        load_tuner(name)


WAITING = """
import os, time
from pathlib import Path
class Waiting:
    def __init__(self, problem, seed):
        Path(f"worker-{os.getpid()}").touch()
        time.sleep(500)
"""


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(folder: Path) -> None:
    (folder / "waiting_tuner.py").write_text(WAITING)
    command = "from layoutbench.cli import main; main()"
    run = ["run", "--tuner", "waiting_tuner:Waiting", "--landscapes", "landscapes", "--jobs", "2"]
    parent = start_process([sys.executable, "-c", command, *run], cwd=folder)
    wait_until(lambda: bool([*folder.glob("worker-*")]))
    (worker,) = (int(path.name.partition("-")[2]) for path in folder.glob("worker-*"))
    assert is_alive(worker)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(worker))


def test_the_core_needs_numpy_alone() -> None:
    for path in Path(str(layoutbench.__file__)).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                root = module.partition(".")[0]
                assert root in {"numpy", "layoutbench", *sys.stdlib_module_names}, f"{path.name} imports {module}"


def test_all_runs_are_exported_as_one_table(tmp_path: Path) -> None:
    landscapes = load_landscapes([SHIPPED])
    export_csv(landscapes, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(layout.runs) for item in landscapes for layout in item.layouts)
    assert all(row["licence"] and (float(row["step_s"] or 0) > 0) == (row["outcome"] == "ok") for row in rows)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fastparquet leaves its file open
def test_landscapes_are_exported_as_syne_tune_reads_them(tmp_path: Path) -> None:
    need_module("syne-tune", "fastparquet")
    import fastparquet

    landscape = parse_landscape(content())
    export_syne_tune([landscape], tmp_path)
    (place,) = tmp_path.iterdir()
    table = fastparquet.ParquetFile(str(place / "hyperparameters.parquet")).to_pandas()
    values = np.load(place / "objectives_evaluations.npy")
    names = json.loads((place / "metadata.json").read_text())["objectives_names"]
    steps = values[0, :, 0, 0, names.index("metric_step_s")]
    assert dict(table.iloc[int(np.nanargmin(steps))]) == BEST
    assert np.isnan(steps).sum() == 3 and values.shape == (1, 12, 1, 1, len(names))
    space = json.loads((place / "configspace.json").read_text())
    assert space["mbs"]["domain_kwargs"]["categories"] == [1, 2, 4, 8]
