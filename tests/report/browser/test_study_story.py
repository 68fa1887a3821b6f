"""What the page shows beside the trials: your own command, a fair gain, the strategy and what it found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import digest_of
from tests.report.studies import BASELINE, TRIALS, Recorded, header, ok, recorded
from tests.report.test_study_story import EXPECTED, FOUND, OWN_OOM, WHY_ENDED
from zenith_tune.record.search import StudySearch

pytestmark = pytest.mark.slow


def test_the_strategy_why_it_stopped_and_its_table_are_on_the_page(browser: Browser, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    study.record.keep_search(StudySearch(strategy="guided").ended(2.0, WHY_ENDED, FOUND))
    study.record.close()
    browser.open(tmp_path, digest_of(study))
    assert "guided" in browser.text("#headline .eyebrow")
    assert WHY_ENDED in browser.text("#headline .stopped")
    assert browser.texts("#findings th") == ["trial", "layout"] and browser.texts("#findings td") == ["4", "TP2 | PP2"]
    assert "off by 4%" in browser.text("#findings")
    caption = browser.text("#predicted figcaption")
    assert EXPECTED.by in caption and "planner" not in caption


def test_another_batch_is_noted_at_the_gain_and_at_the_table(browser: Browser, tmp_path: Path) -> None:
    own = replace(BASELINE, extra={"global_batch_size": 16})
    tried = ok(2, 2, 1, 61_000.0, extra={"global_batch_size": 64})
    study = digest_of(recorded(tmp_path / "out", [own, tried]))
    assert re.findall(r"\d+", study["batch_note"]) == ["16", "64"]
    browser.open(tmp_path, study)
    gain = browser.texts("#headline .tile")[0]
    assert gain.startswith("+22.0%") and "batch" in gain
    assert study["batch_note"] in browser.text("#headline .batch-note")
    assert study["batch_note"] in browser.text("#trials")


def test_an_own_command_that_failed_is_in_the_headline(browser: Browser, tmp_path: Path) -> None:
    study = digest_of(recorded(tmp_path / "out", [OWN_OOM, ok(2, 2, 1, 61_000.0), TRIALS[2]]))
    browser.open(tmp_path, study)
    assert browser.texts("#headline .tile b")[0] == "61,000"
    assert browser.texts("#headline .tile.lead") == []
    assert "out of memory" in browser.text("#headline .own-failure")
    assert "torch.OutOf" in browser.text("#headline .own-failure")
    assert study["failures"][0]["who"] in browser.text("#failures")
    own, other = browser.texts("#failures button.link")
    assert own == study["trials"][0]["label"] and other == "#2"
    assert re.match(r"1 .*\b1 failed; .* failed", browser.text("#progress figcaption"))


def test_without_a_baseline_no_tile_stands_for_a_gain(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, digest_of(recorded(tmp_path / "out", TRIALS[1:4])))
    assert browser.count("#headline .tile.lead") == 0
    assert not any("gain" in tile or "command" in tile for tile in browser.texts("#headline .tile"))
