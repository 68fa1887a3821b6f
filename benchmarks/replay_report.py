"""What replays come to, as a page: scores of strategies with their targets, tables of landscapes, and a plot."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from itertools import accumulate
from statistics import fmean, median
from typing import Any

from replay_landscape import NUM_STEPS, START_UP_S
from replay_strategies import Replay
from scoreboard_report import table

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


def after_best(item: Replay) -> int:
    """Return how many trials ran after the best of them."""
    return len(item.behind) - 1 - item.behind.index(min(item.behind)) if item.behind else 0


def _stopped(replays: Sequence[Replay]) -> Scores:
    behind = [min(item.behind, default=math.inf) for item in replays]
    return {
        "stopped_after_mean": _mean(replays, lambda item: len(item.behind)),
        "stopped_after_median": _middle(replays, lambda item: len(item.behind)),
        "stopped_after_max": _worst(replays, lambda item: len(item.behind)),
        "trials_after_best_mean": _mean(replays, after_best),
        "trials_after_best_median": _middle(replays, after_best),
        "gpu_seconds_to_stop_mean": _mean(replays, lambda item: math.fsum(item.gpu_seconds)),
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


def _middle(replays: Sequence[Replay], of: Callable[[Replay], float]) -> float:
    return round(median(_means(replays, of)), 2)


def _percent(share: float) -> float | None:
    """Return a share in percent, None where nothing ran: JSON has no infinity."""
    return round(100 * share, 2) if math.isfinite(share) else None


TARGETS: dict[str, dict[str, float]] = {
    "guided": {
        "trials_to_1pct_mean": 4,
        "trials_to_1pct_max": 10,
        "first_pick_median_pct": 5,
        "trials_after_best_median": 2,
        "trials_after_best_mean": 5,
        "behind_when_stopped_mean_pct": 0.5,
    },
    "guided-uncalibrated": {"trials_to_1pct_mean": 8},
}
NAMES = {
    "trials_to_1pct_mean": "trials to 1%, mean",
    "trials_to_1pct_max": "trials to 1%, worst landscape",
    "first_pick_median_pct": "first trial behind the best, median, %",
    "trials_after_best_median": "trials after its best one, median",
    "trials_after_best_mean": "trials after its best one, mean",
    "behind_when_stopped_mean_pct": "behind the best when it stops, mean, %",
}
REFERENCES = {"optuna": "14.5", "random": "about 50", "gradient-boosted regression, told which layouts run": "3.1"}
"""Trials to 1% on the Playbook's landscapes that were stated when the targets were set."""
ABOUT = f"""\
Strategies search landscapes (a model on a cluster) that were measured whole, and are answered from the record.

- A trial is one recorded layout, whether it ran or crashed; repeats of a layout are one, its value their median. What
  is not in the record, what its source marks as doubtful, and what the framework's own rules forbid is pruned and costs
  nothing. Runs of accelerate took a step after each micro-batch: they are compared by the time that the same number of
  samples takes.
- A strategy that ends before it is within 1% of the best counts with as many trials as there are layouts. Those that
  draw at random are averaged over seeds.
- A trial costs its GPUs times {START_UP_S:.0f} s and {NUM_STEPS} steps, one that crashes {START_UP_S:.0f} s, where its
  duration was not recorded.
- Guided begins with a calibration, of time and of memory, that was fitted to other landscapes than the one it searches;
  guided-uncalibrated with none. The form of both models, and guided's own constants, were chosen with these landscapes
  at hand.
- Trials to 1% are of a study as its user sees it, which may end before. When one ended by itself, and how far behind
  the best it then was, stands in the last columns."""


def markdown(scores: dict[str, Scores], origins: Mapping[str, str], reach: Mapping[str, bool]) -> str:
    """Write the page; `origins` is what guided was calibrated on, `reach` whether the heuristic may come within 1%."""
    parts = [
        "# Replay",
        f"Written by `make replay` on {date.today().isoformat()}.",
        ABOUT,
        table(*_overview(scores)),
        "![fraction behind the best against trials](replay.svg)",
        "## Targets",
        table(("strategy", "what", "ours", "at most", ""), _target_rows(scores)),
        "For comparison, trials to 1% as stated when these were set: "
        + "; ".join(f"{name} {value}" for name, value in REFERENCES.items())
        + ".",
        *_source_tables(scores),
        *_landscape_tables(scores, origins),
        *_heuristic(scores.get("megatron-heuristic"), reach),
    ]
    return "\n\n".join(parts) + "\n"


def _overview(scores: dict[str, Scores]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = (
        *("strategy", "landscapes", "trials to 1%", "worst", "to 5%", "GPU-hours to 1%", "first trial, median"),
        *("crashed until 1%", "never within 1%", "trials until it stops", "median", "after its best"),
        *("GPU-hours until it stops", "then behind, mean", "worst"),
    )
    return head, [_row(name, found) for name, found in scores.items()]


def _row(name: str, found: Scores) -> tuple[str, ...]:
    if not found["landscapes"]:
        return (name, "0", *[""] * 13)
    return (
        name,
        str(found["landscapes"]),
        f"{found['trials_to_1pct_mean']:.2f}",
        f"{found['trials_to_1pct_max']:.1f}",
        f"{found['trials_to_5pct_mean']:.2f}",
        f"{found['gpu_seconds_to_1pct_mean'] / 3600:.2f}",
        _behind(found["first_pick_median_pct"]),
        f"{found['crashed_before_1pct_mean']:.2f}",
        f"{found['never_within_1pct_pct']:.0f}%",
        *_stop_cells(found),
    )


def _stop_cells(found: Scores) -> tuple[str, ...]:
    if "stopped_after_mean" not in found:
        return ("",) * 6
    ends = (found["behind_when_stopped_mean_pct"], found["behind_when_stopped_max_pct"])
    return (
        f"{found['stopped_after_mean']:.1f}",
        f"{found['stopped_after_median']:.1f}",
        f"{found['trials_after_best_mean']:.1f}",
        f"{found['gpu_seconds_to_stop_mean'] / 3600:.2f}",
        _behind(ends[0]),
        _behind(ends[1]),
    )


def _behind(percent: float | None) -> str:
    return "crashed" if percent is None else f"{percent:.1f}%"


def _target_rows(scores: dict[str, Scores]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, limits in TARGETS.items():
        for key, limit in limits.items():
            if (value := scores.get(name, {}).get(key)) is not None:
                rows.append((name, NAMES[key], f"{value:.2f}", f"{limit:g}", "met" if value <= limit else "NOT MET"))
    return rows


def _source_tables(scores: dict[str, Scores]) -> list[str]:
    sources = sorted({source for found in scores.values() for source in found["by_source"]})
    parts = ["## By source"]
    for source in sources:
        own = {name: found["by_source"][source] for name, found in scores.items() if source in found["by_source"]}
        parts += [f"`{source}`", table(*_overview(own))]
    return parts


def _landscape_tables(scores: dict[str, Scores], origins: Mapping[str, str]) -> list[str]:
    parts = []
    for name in (name for name in scores if name.startswith("guided")):
        own = ("calibrated on",) if name == "guided" else ()
        head = ("landscape", "layouts", "trials to 1%", "to 5%", "first trial", "trials until it stops", "then behind")
        rows = [
            (
                place,
                f"{found['candidates_mean']:.0f}",
                f"{found['trials_to_1pct_mean']:.0f}",
                f"{found['trials_to_5pct_mean']:.0f}",
                _behind(found["first_pick_median_pct"]),
                _stop_cells(found)[0],
                _stop_cells(found)[4],
                *(origins[place] for _ in own),
            )
            for place, found in scores[name]["by_landscape"].items()
        ]
        parts += [f"## {name.capitalize()}, by landscape", table((*head, *own), rows)]
    return parts


def _heuristic(found: Scores | None, reach: Mapping[str, bool]) -> list[str]:
    """Say what the heuristic was not replayed on, and what it cannot find."""
    if found is None:
        return []
    mapped = [place for place in reach if place not in found["not_mapped"]]
    beyond = [place for place in mapped if not reach[place]]
    lines = [
        "It has no data parallelism, ZeRO or switch against recomputation to turn, and pp is 1: what it says of "
        "recomputation is ignored where only one way was recorded, ZeRO is 1 where that was recorded, else 0. "
        f"In {len(beyond)} of {len(mapped)} landscapes no layout within 1% of the best is one that it may ask for"
        + (f": {', '.join(beyond)}." if beyond else "."),
        *(f"Not replayed on {place}: {why}." for place, why in found["not_mapped"].items()),
    ]
    return ["## What megatron-heuristic cannot reach", "\n".join(f"- {line}" for line in lines)]
