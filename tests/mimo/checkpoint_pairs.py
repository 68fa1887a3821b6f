"""Which layout reads what another wrote: every pair of kinds, since all pairs of layouts would take too long."""

from __future__ import annotations

from tests.mimo.small_models import CHECKPOINT_LAYOUTS, LAYOUTS

HUB = "2 ranks"
# Every layout trains on from what these wrote, and the hub from what every layout wrote.
TRAINED_ON_BY_ALL = (HUB, "colocated tp2 dp4 to tp4 dp2")


def is_sharded(name: str) -> bool:
    """Return whether a layout's optimizer state is sharded here: some are, so that both ways are crossed."""
    return "dp4" in name


def kind_of(name: str) -> tuple[object, ...]:
    """Return what a checkpoint's boxes depend on: shared ranks, sharded state, tp, stages, which module has lanes."""
    layout = LAYOUTS[name][1]
    vision, language = layout.modules["vision"], layout.language
    has_stages = max(vision.pp, language.pp) > 1
    lanes = (vision.dp > language.dp) - (vision.dp < language.dp)
    if layout.is_colocated:
        return ("shared", is_sharded(name))
    return ("apart", is_sharded(name), max(vision.tp, language.tp) > 1, has_stages, lanes)


def _chosen() -> list[tuple[str, str]]:
    """Return the pairs that are trained on, and one more for each pair of kinds that none of them has."""
    chosen = sorted(TRAINED_PAIRS)
    for one in CHECKPOINT_LAYOUTS:
        for other in CHECKPOINT_LAYOUTS:
            if (kind_of(one), kind_of(other)) not in {(kind_of(a), kind_of(b)) for a, b in chosen}:
                chosen.append((one, other))
    return chosen


TRAINED_PAIRS = {
    (one, other)
    for one in CHECKPOINT_LAYOUTS
    for other in CHECKPOINT_LAYOUTS
    if other == HUB or one in TRAINED_ON_BY_ALL
}
READ_PAIRS = _chosen()
