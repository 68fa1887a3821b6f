"""Evaluation, and optimizers other than AdamW, in layouts of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_evaluation_gives_the_loss_of_training_and_other_optimizers_go_on_in_other_layouts(
    run_program: RunProgram, tmp_path: Path
) -> None:
    for rank in run_program("evaluation", str(tmp_path)):
        one, other = rank["evaluated"].values()
        assert one == pytest.approx(other, rel=1e-9)
        assert one[0] == pytest.approx(one[1], rel=1e-12) and one[2] != one[0]
        trained = rank["optimizers"]
        for name, found in trained.items():
            assert found["found"] == pytest.approx(found["expected"], rel=1e-9), name
            assert found["begun"][0] == trained["sgd"]["begun"][0]
        assert len({tuple(found["expected"]) for found in trained.values()}) == len(trained) == 4
        assert mentions(rank["refused"], "Adafactor", "row_var")
