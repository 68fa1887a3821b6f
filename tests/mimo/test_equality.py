"""Every layout trains as one process does: losses, gradients, norm, clipped gradients and weights, five steps long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import LAYOUTS

pytestmark = pytest.mark.slow

TOLERANCES = {"float32": 1e-5, "float64": 1e-10}
KINDS = {"loss", "grads", "norm", "clipped", "weights"}


def too_large(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the errors over the tolerance of their precision, the worst of all ranks."""
    worst = {key: {k: max(rank["errors"][k] for rank in ranks) for k in KINDS} for key, ranks in found.items()}
    limits = {key: TOLERANCES[key.rpartition("/")[2]] for key in found}
    over = {key: {k: e for k, e in errors.items() if not e <= limits[key]} for key, errors in worst.items()}
    return {key: errors for key, errors in over.items() if errors}


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_layout_trains_as_one_process_does(run_program: RunProgram, world_size: int) -> None:
    names = [name for name, (_, layout, _) in LAYOUTS.items() if layout.world_size == world_size]
    found = run_program("equality", *names)
    assert set(found) == {f"{name}/{precision}" for name in names for precision in TOLERANCES}
    assert all(len(ranks) == world_size for ranks in found.values())
    assert too_large(found) == {}
    # Loss, tokens and norm are not only close but the same number on every rank.
    assert [key for key, ranks in found.items() if any(rank["alike"] != ranks[0]["alike"] for rank in ranks)] == []
