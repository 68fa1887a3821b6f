"""What the page tells beside the trials: your own command, a fair gain, the strategy and what it found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.browser.browsers import Browser
from tests.report.browser.pages import told
from tests.report.studies import BASELINE, TRIALS, Recorded, header, ok, recorded
from tests.report.test_study_story import FOUND, OWN_OOM
from zenith_tune.record.search import StudySearch

pytestmark = pytest.mark.slow


def test_the_strategy_why_it_stopped_and_its_table_are_on_the_page(browser: Browser, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    study.record.keep_search(StudySearch(strategy="guided").ended(2.0, "no gain is likely", FOUND))
    study.record.close()
    browser.open(tmp_path, told(study))
    assert "strategy guided" in browser.text("#headline .eyebrow")
    assert browser.text("#headline .stopped") == "Stopped: no gain is likely."
    assert browser.texts("#findings th") == ["trial", "layout"] and browser.texts("#findings td") == ["4", "TP2 | PP2"]
    assert "off by 4%" in browser.text("#findings")
    caption = browser.text("#predicted figcaption")
    assert "Predicted by the planner; strategy guided, by what it had learned." in caption


def test_another_batch_is_noted_at_the_gain_and_at_the_table(browser: Browser, tmp_path: Path) -> None:
    own = replace(BASELINE, extra={"global_batch_size": 16})
    tried = ok(2, 2, 1, 61_000.0, extra={"global_batch_size": 64})
    browser.open(tmp_path, told(recorded(tmp_path / "out", [own, tried])))
    assert browser.texts("#headline .tile")[0] == "+22.0%gain over your command, another batch"
    assert "your command trains batch 16, the trials 64" in browser.text("#headline .batch-note")
    assert "your command trains batch 16, the trials 64" in browser.text("#trials")


def test_a_command_of_yours_that_failed_is_told_in_the_headline(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, told(recorded(tmp_path / "out", [OWN_OOM, ok(2, 2, 1, 61_000.0), TRIALS[2]])))
    assert browser.texts("#headline .tile")[0] == "oomyour command"
    assert browser.texts("#headline .tile.lead") == []
    assert "Your own command went wrong (out of memory): torch.OutOf" in browser.text("#headline .own-failure")
    assert "out of memory · your command and 1 trial" in browser.text("#failures")
    assert browser.texts("#failures button.link") == ["your command", "#2"]
    assert "1 trial went well, 1 failed; your own command failed" in browser.text("#progress figcaption")


def test_without_a_baseline_no_tile_stands_for_a_gain(browser: Browser, tmp_path: Path) -> None:
    browser.open(tmp_path, told(recorded(tmp_path / "out", TRIALS[1:4])))
    assert not any("gain" in tile or "your command" in tile for tile in browser.texts("#headline .tile"))
