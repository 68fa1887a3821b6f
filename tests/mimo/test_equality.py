"""Every layout trains as one process does: losses, gradients, norm, clipped gradients and weights, some steps long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import LAYOUTS

KINDS = ("loss", "first grads", "grads", "norm", "clipped", "weights")
# With the usual eps Adam magnifies rounding in single precision: then losses, norms and the gradients before the first
# update are as equal as with a large one, and "drift" is that of the weights as a part of what Adam's formula makes of
# the gradients' differences (adam_bound.py). Later gradients are of weights that have drifted.
TOLERANCES = {
    "float32": dict.fromkeys(KINDS, 1e-5),
    "float64": dict.fromkeys(KINDS, 1e-10),
    "float32 usual eps": {
        "loss": 1e-5,
        "norm": 1e-5,
        "first grads": 1e-5,
        "grads": 5e-4,
        "clipped": 5e-4,
        "drift": 1.0,
    },
}


# By rank: what comes before a stage and has nothing to train gets no gradient.
SENDS_GRADIENTS = {
    "frozen encoder, 2 ranks": [False, False],
    "frozen tower, pp2 to pp2": [False, False, True, True],
    "frozen first stages, llm pp3": [False, False, False, True],
    "frozen language, colocated": [False] * 4,
}


def too_large(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the errors over the tolerance of their precision, the worst of all ranks."""
    over = {}
    for key, ranks in found.items():
        limits = TOLERANCES[key.rpartition("/")[2]]
        worst = {kind: max(rank["errors"][kind] for rank in ranks) for kind in limits}
        over[key] = {kind: error for kind, error in worst.items() if not error <= limits[kind]}
    return {key: errors for key, errors in over.items() if errors}


@pytest.mark.parametrize(
    "world_size", [2, *(pytest.param(size, marks=[pytest.mark.slow, pytest.mark.timeout(900)]) for size in (4, 8))]
)
def test_every_layout_trains_as_one_process_does(run_program: RunProgram, world_size: int) -> None:
    names = [name for name, (_, layout, _) in LAYOUTS.items() if layout.world_size == world_size]
    found = run_program("equality", *names)
    # Rounding is looked at on up to four ranks: eight of them on two cores take long.
    wanted = [one for one in TOLERANCES if world_size <= 4 or one == "float64"]
    assert set(found) == {f"{name}/{precision}" for name in names for precision in wanted}
    assert all(len(ranks) == world_size for ranks in found.values())
    assert too_large(found) == {}
    # Loss, tokens and norm are not only close but the same number on every rank.
    assert [key for key, ranks in found.items() if any(rank["alike"] != ranks[0]["alike"] for rank in ranks)] == []
    assert {key: [rank["gradients sent"] > 0 for rank in ranks] for key, ranks in found.items() if "frozen" in key} == {
        f"{name}/{precision}": SENDS_GRADIENTS[name] for name in names if "frozen" in name for precision in wanted
    }
