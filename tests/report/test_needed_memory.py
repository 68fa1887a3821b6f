"""What a trial that ran out of memory would have needed, from its last words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.studies import BASELINE, failed, ok, recorded
from zenith_tune.evaluators.failures.failures import FailedAllocation, reported_capacity
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.study.trial import Outcome
from zenith_tune.units import GIB

NEW = (
    "CUDA out of memory. Tried to allocate 17.20 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is "
    "free. Process 7 has 79.50 GiB memory in use."
)
OLD = (
    "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 3; 39.59 GiB total capacity; 38.1 GiB already allocated; "
    "256.00 MiB free; 38.5 GiB reserved in total by PyTorch)"
)
MISSPELT = "Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 79.10 GiB of which 1.10 GiB is free."
PLAIN = {"n_gpus": "8", "gbs": "64"}


def digest_of(root: Path, *causes: str, kind: str = "out of memory", **changes: Any) -> dict[str, Any]:
    trials = [failed(1, 1, 2**at, Outcome.OOM, kind, cause) for at, cause in enumerate(causes)]
    study = recorded(root, [BASELINE, ok(4, 1, 1, 55_000.0), *trials], **changes)
    return StudyDigest(StudyReader(study.url, "s")).object()


def needed(content: dict[str, Any], number: int) -> tuple[float, bool]:
    found = content["trials"][number]["needed"]
    return round(found["bytes"] / GIB, 2), found["is_bound"]


@pytest.mark.parametrize(("cause", "gib"), [(NEW, 96.7), (OLD, 39.84), (MISSPELT, 80.0)])
def test_it_needed_what_it_had_taken_and_what_it_asked_for_on_top(cause: str, gib: float) -> None:
    found = FailedAllocation.of(cause).needed_bytes
    assert found is not None and found / GIB == pytest.approx(gib, abs=0.01)


def test_a_memory_in_pieces_shows_no_more_than_that_it_was_not_enough() -> None:
    pieces = "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 3.00 GiB is free."
    assert FailedAllocation.of(pieces).needed_bytes is None
    assert reported_capacity([None, pieces, MISSPELT]) == 80 * GIB


def test_every_trial_out_of_memory_is_placed_beyond_the_gpu(tmp_path: Path) -> None:
    half = "Tried to allocate 12.5 GiB. GPU 0 has a total capacity of 80.00 GiB"
    content = digest_of(tmp_path / "out", NEW, half, args=PLAIN)
    assert (needed(content, 2), needed(content, 3)) == ((96.7, False), (80.0, True))
    assert [trial["needed"] for trial in content["trials"][:2]] == [None, None]


def test_without_last_words_the_larger_of_plan_and_capacity_is_a_bound(tmp_path: Path) -> None:
    content = digest_of(tmp_path / "out", *["OutOfMemoryError"] * 4)
    capacity, trials = content["capacity_bytes"], content["trials"][2:]
    predicted = [trial["predicted"]["memory_bytes"] for trial in trials]
    assert min(predicted) < capacity < max(predicted)
    assert [trial["needed"]["bytes"] for trial in trials] == [max(each, capacity) for each in predicted]
    assert all(trial["needed"]["is_bound"] for trial in trials)


def test_of_an_unknown_gpu_another_trials_memory_was_not_enough(tmp_path: Path) -> None:
    content = digest_of(tmp_path / "out", "CUDA out of memory. Tried to allocate 26.63 GiB.", args=PLAIN)
    assert content["capacity_bytes"] is None
    assert needed(content, 2) == (round(content["trials"][1]["memory_bytes"] / GIB, 2), True)
    alone = replace(ok(4, 1, 1, 55_000.0), peak_memory_bytes=GIB)
    study = recorded(
        tmp_path / "two", [alone, failed(1, 1, 1, Outcome.OOM, "out of memory", "out of memory")], args=PLAIN
    )
    assert needed(StudyDigest(StudyReader(study.url, "s")).object(), 1) == (1.0, True)


def test_the_hosts_memory_is_not_a_gpus(tmp_path: Path) -> None:
    content = digest_of(tmp_path / "out", "killed by SIGKILL", kind="out of host memory")
    assert content["trials"][2]["needed"] is None
