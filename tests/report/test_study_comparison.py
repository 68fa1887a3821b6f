"""The words that two studies are compared with."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.studies import BASELINE, TRIALS, ok, recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.study_comparison import compared
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import comparison_markdown, escaped

Json = dict[str, Any]


def digest(root: Path, *trials: Any, name: str = "t", **changes: Any) -> Json:
    study = recorded(root, trials or TRIALS, name=name, **changes)
    return StudyDigest(StudyReader(study.url, name)).object()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Json:
    return digest(tmp_path_factory.mktemp("study") / "out", name="s")


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (61_000.0, "as fast"),
        (61_600.0, "as fast"),
        (67_100.0, "10.0% faster"),
        (54_900.0, "10.0% slower"),
    ],
)
def test_what_differs_by_no_more_than_the_noise_is_as_fast(
    tmp_path: Path, study: Json, value: float, verdict: str
) -> None:
    found = compared(study, digest(tmp_path / "two", BASELINE, ok(2, 2, 1, value)))
    assert found["verdict"].startswith(verdict)
    assert re.search(rf"\*\*t\*\* .*{found['verdict']} \*\*s\*\*", comparison_markdown(found))


def test_what_is_no_speed_is_better_or_worse(tmp_path: Path, study: Json) -> None:
    for value, verdict in ((67_100.0, "10.0% better"), (54_900.0, "10.0% worse")):
        other = digest(tmp_path / verdict[-6:], BASELINE, ok(2, 2, 1, value))
        assert compared({**study, "unit": ""}, {**other, "unit": ""})["verdict"].startswith(verdict)


def test_two_runs_of_the_same_settings_show_the_noise(tmp_path: Path, study: Json) -> None:
    twice = {**study, "best_is_own": True, "gain": 0.4}
    slower = digest(tmp_path / "two", BASELINE, ok(2, 2, 1, 54_900.0))
    assert compared(study, slower)["verdict"].startswith("10.0% slower")
    assert compared(twice, slower)["verdict"].startswith("as fast")


def test_without_noise_equal_values_are_as_fast(tmp_path: Path) -> None:
    exact = replace(ok(2, 2, 1, 61_000.0), spread=None)
    same = digest(tmp_path / "one", exact), digest(tmp_path / "two", exact)
    assert compared(*same)["verdict"].startswith("as fast")


def test_another_job_is_warned_of_beside_the_verdict(tmp_path: Path, study: Json) -> None:
    args = {**study["header"]["args"], "gbs": "128"}
    other = digest(
        tmp_path / "two", args=args, command="torchrun other.py --seq-length 4096", evaluator="tokens at 128"
    )
    found = compared(study, other)
    assert found["caution"].endswith(": command, gbs (64 and 128).")
    text = comparison_markdown(found)
    assert text.index(escaped(found["caution"])) < text.index("| best layout |")


def test_another_way_to_read_the_value_is_warned_of_where_nothing_else_tells(tmp_path: Path, study: Json) -> None:
    at_gbs = "tokens at gbs 8"
    other = digest(tmp_path / "two", evaluator=at_gbs, args=study["header"]["args"])
    assert compared(study, other)["caution"].endswith(f": evaluator ({study['header']['evaluator']} and {at_gbs}).")


def test_the_same_job_is_not_warned_of(tmp_path: Path, study: Json) -> None:
    found = compared(study, digest(tmp_path / "two", args=study["header"]["args"]))
    assert (found["caution"], found["differences"]) == ("", [])
    assert "differ" not in comparison_markdown(found)


def test_a_default_is_what_it_stands_for(tmp_path: Path) -> None:
    made = {"preset": "demo", "evaluator": "megatron throughput at gbs 16"}
    silent, spoken = (
        digest(tmp_path / name, BASELINE, args=args, **made)
        for name, args in (("one", {}), ("two", {"gbs": "16", "n_gpus": "4"}))
    )
    assert compared(silent, spoken)["differences"] == [["n_gpus", "8", "4"]]


def test_another_strategy_is_shown(tmp_path: Path, study: Json) -> None:
    same = digest(tmp_path / "two", args=study["header"]["args"])
    found = compared({**study, "strategy": "grid"}, {**same, "strategy": "guided"})
    assert (found["differences"], found["caution"]) == ([["strategy", "grid", "guided"]], "")


def test_the_curve_is_the_one_that_the_study_itself_tells(study: Json) -> None:
    found = compared(study, study)["studies"][0]
    assert (found["progress"], found["last"]) == (
        [[0, 50_000.0, "your command"], [3, 55_000.0, "TP2 mbs1 full"], [4, 61_000.0, "TP2 PP2 mbs1 full"]],
        9,
    )
