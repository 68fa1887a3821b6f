"""A checkpoint is of a model, not of a layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.mimo.checkpoint_pairs import HUB, READ_BY_ALL
from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import CHECKPOINT_LAYOUTS, GLOBAL_BATCH_SIZE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOLERANCE = 1e-10


def test_every_layout_goes_on_from_what_another_saved_and_a_misfit_is_refused(
    run_program: RunProgram, tmp_path: Path
) -> None:
    found = run_program("checkpoint", str(tmp_path))
    loads = found["loads"]
    for layout in CHECKPOINT_LAYOUTS:
        assert {f"{READ_BY_ALL} -> {layout}", f"{layout} -> {HUB}"} <= loads.keys()
    assert all("loss" in rank["errors"] for ranks in loads.values() for rank in ranks), "each is trained on"
    for ranks in loads.values():
        assert {rank["iteration"] for rank in ranks} == {2}
        settings = [module for rank in ranks for module in rank["settings"]]
        assert all(module["step"] == 2 and module["groups"][0]["lr"] == 0.01 for module in settings)
    assert {key: worst for key, ranks in loads.items() if (worst := worst_of(ranks)) > TOLERANCE} == {}
    for rank in found["refusals"]:
        assert ".metadata" in rank["nothing there"]
        assert mentions(rank["one parameter more"], "'model/language/surplus'")
        assert mentions(rank["another shape"], "[3, 32]", "[24, 32]")


def test_a_failed_save_leaves_the_last_checkpoint_and_parts_of_different_saves_are_refused(
    run_program: RunProgram, tmp_path: Path
) -> None:
    for rank in run_program("save", str(tmp_path)):
        assert mentions(rank["failed"], "rank 1", "unchanged") and rank["left"] == 2
        assert rank["kept"] == [1, True] and rank["of version 0.2"] == [1, True]
        assert rank["replaced"] == [2, True] and rank["remaining"] == 1
        assert mentions(rank["mixed"], "iter_0000001", "iter_0000002")
        assert mentions(rank["damaged"], "cannot load", "damaged")
        assert mentions(rank["without contents"], "cannot load", ".metadata")
        assert mentions(rank["no folder"], "rank 0", "file")
        assert not [text for text in rank.values() if isinstance(text, str) and "\n" in text]


def test_buffers_schedules_samples_and_random_numbers_go_on_and_weights_alone_begin_another_training(
    run_program: RunProgram, tmp_path: Path
) -> None:
    found = run_program("resume", str(tmp_path))
    same, other = found["same"], found["other"]
    vision, language = same
    for rank in same:
        saved, loaded = rank["expected"].pop("buffers"), rank["found"].pop("buffers")
        # The last two are no part of the state.
        assert saved == [7.0] * len(saved) and loaded == [*saved[:4], *[0.0] * len(saved[4:])]
        assert rank["found"] == rank["expected"] and rank["found"]["begin"] == [2, 2 * GLOBAL_BATCH_SIZE]
        assert mentions(rank["without schedule"], "schedule")
    assert vision["found"]["rates"] == [{"vision": pytest.approx(0.01 / (1 + step))} for step in (2, 3, 4)]
    assert language["found"]["rates"] == [{"language": pytest.approx(rate)} for rate in (1e-3, 1e-4, 1e-4)]
    for rank, there in zip(other, [vision, language, language, language], strict=True):
        assert rank["found"]["own numbers"] and rank["found"]["begin"] == [2, 2 * GLOBAL_BATCH_SIZE]
        assert rank["found"]["rates"] == there["found"]["rates"]
        assert rank["found"]["losses"] == pytest.approx(there["found"]["losses"], rel=TOLERANCE)
        assert mentions(rank["refused"], "frozen", "weights only")
        before, after = rank["stage two"]["losses"]
        assert after == pytest.approx(before, rel=TOLERANCE)
        assert rank["stage two"]["iteration"] == 0 and set(rank["stage two"]["rates"].values()) == {0.5}


def worst_of(ranks: list[dict[str, dict[str, float]]]) -> float:
    return max(error for rank in ranks for error in rank["errors"].values())
