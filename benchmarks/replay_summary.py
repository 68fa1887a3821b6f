"""What replays come to: trials and GPU-seconds until a strategy is near the best, and how far behind it stopped."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean, median
from typing import Any

from replay_strategies import Replay

NEAR, FAIR = 0.01, 0.05
"""Within these shares of the best a strategy is as good as there, and well on its way."""
NOTHING = 1.0
"""What counts as behind where nothing has run yet, or where what ran is slower still."""
KEYS = (
    *("trials_to_1pct_mean", "trials_to_1pct_max", "trials_to_5pct_mean"),
    *("gpu_seconds_to_1pct_mean", "first_pick_median_pct"),
)
Scores = dict[str, Any]


def summaries(replays: Sequence[Replay]) -> dict[str, Scores]:
    """Return the scores of every strategy, over all landscapes and by each source and landscape."""
    found = {}
    for name in dict.fromkeys(item.strategy for item in replays):
        own = [item for item in replays if item.strategy == name]
        ran = [item for item in own if not item.why_not]
        sources = {
            source: [item for item in ran if item.source == source] for source in sorted({i.source for i in ran})
        }
        found[name] = {
            **summary(ran),
            "not_mapped": {item.landscape: item.why_not for item in own if item.why_not},
            "by_source": {source: summary(items) for source, items in sources.items()},
            "by_landscape": {place: summary(items) for place, items in _by_landscape(ran).items()},
        }
    return found


def summary(replays: Sequence[Replay]) -> Scores:
    """Summarise replays of one strategy: means over landscapes, each the mean over its seeds."""
    if not replays:
        return {"landscapes": 0} | dict.fromkeys(KEYS)
    scores = {
        "landscapes": len(_by_landscape(replays)),
        "candidates_mean": _mean(replays, lambda item: item.num_candidates),
        "trials_to_1pct_mean": _mean(replays, lambda item: trials_to(item, NEAR)),
        "trials_to_1pct_max": _worst(replays, lambda item: trials_to(item, NEAR)),
        "trials_to_5pct_mean": _mean(replays, lambda item: trials_to(item, FAIR)),
        "gpu_seconds_to_1pct_mean": _mean(replays, lambda item: gpu_seconds_to(item, NEAR)),
        "first_pick_median_pct": _percent(median(first_pick(item) for item in replays)),
        "crashed_before_1pct_mean": _mean(replays, num_crashed),
        "never_within_1pct_pct": round(100 * fmean(item.trials_to(NEAR) is None for item in replays), 1),
    }
    return scores | (_stopped(replays) if all(item.ends_by_itself for item in replays) else {})


def trials_to(item: Replay, share: float) -> int:
    """Return the trials until `share` of the best; all layouts where the strategy ended before."""
    found = item.trials_to(share)
    return item.num_candidates if found is None else found


def gpu_seconds_to(item: Replay, share: float) -> float:
    """Return the GPU-seconds until `share` of the best; those of all layouts where the strategy ended before."""
    found = item.trials_to(share)
    return item.all_gpu_seconds if found is None else math.fsum(item.gpu_seconds[:found])


def first_pick(item: Replay) -> float:
    """Return how far the first trial was behind the best; infinite where it crashed."""
    return item.behind[0] if item.behind else math.inf


def num_crashed(item: Replay) -> int:
    """Return how many trials crashed until 1% of the best, or until the end."""
    return sum(math.isinf(behind) for behind in item.behind[: item.trials_to(NEAR)])


def curve(replays: Sequence[Replay], num_trials: int) -> list[float]:
    """Return the mean fraction behind the best after 1, 2 ... trials; a strategy that has ended stays where it is."""
    each = []
    for item in replays:
        best = [min(behind, NOTHING) for behind in accumulate(item.behind, min)][:num_trials] or [NOTHING]
        each.append(best + [best[-1]] * (num_trials - len(best)))
    return [fmean(values) for values in zip(*each, strict=True)]


def _stopped(replays: Sequence[Replay]) -> Scores:
    behind = [min(item.behind, default=math.inf) for item in replays]
    return {
        "stopped_after_mean": _mean(replays, lambda item: len(item.behind)),
        "stopped_after_max": _worst(replays, lambda item: len(item.behind)),
        "behind_when_stopped_mean_pct": _percent(fmean(behind)),
        "behind_when_stopped_max_pct": _percent(max(behind)),
    }


def _by_landscape(replays: Sequence[Replay]) -> dict[str, list[Replay]]:
    places: dict[str, list[Replay]] = defaultdict(list)
    for item in replays:
        places[item.landscape].append(item)
    return dict(sorted(places.items()))


def _means(replays: Sequence[Replay], of: Callable[[Replay], float]) -> list[float]:
    return [fmean(of(item) for item in items) for items in _by_landscape(replays).values()]


def _mean(replays: Sequence[Replay], of: Callable[[Replay], float]) -> float:
    return round(fmean(_means(replays, of)), 2)


def _worst(replays: Sequence[Replay], of: Callable[[Replay], float]) -> float:
    return round(max(_means(replays, of)), 2)


def _percent(share: float) -> float | None:
    """Return a share in percent, None where nothing ran: JSON has no infinity."""
    return round(100 * share, 2) if math.isfinite(share) else None
