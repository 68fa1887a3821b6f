"""What a guided study shows at its end: predicted against measured, and what limited the best layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_name import layout_name
from zenith_tune.planning.planned_layout import CAUSES
from zenith_tune.strategies.guided.prior import Prior
from zenith_tune.study.trial import Trial
from zenith_tune.units import GIB

LEAST_SHARE = 0.05
"""Smaller shares of a step limit nothing."""
COLUMNS = ("trial", "paper s", "expected s", "took s", "off", "paper GiB", "peak GiB", "layout")


def review_row(
    prior: Prior, index: int, layout: Layout, expected_s: float, log_step: float | None, trial: Trial
) -> tuple[str, ...]:
    """Return a row of the table: a layout as it was estimated, as it was expected when picked, and as it was."""
    paper_s, memory = math.exp(prior.log_step[index]), float(prior.estimate.memory_bytes[index])
    measured = f"{math.exp(log_step):.3g}" if log_step is not None else str(trial.outcome)
    off = f"{math.expm1(log_step - math.log(expected_s)):+.0%}" if log_step is not None else ""
    peak = f"{trial.peak_memory_bytes / GIB:.1f}" if trial.peak_memory_bytes else ""
    number = "base" if trial.is_baseline else str(trial.number if trial.number is not None else "")
    figures = (f"{paper_s:.3g}", f"{expected_s:.3g}", measured, off, f"{memory / GIB:.1f}", peak)
    return (number, *figures, layout_name(layout))


def limits_of_best(prior: Prior, index: int) -> str:
    """Say what the best layout spends its time on, by the estimate."""
    step_s = float(prior.estimate.step_s[index])
    shares = {name: float(part[index]) / step_s for name, part in prior.estimate.time_parts.items()}
    large = sorted((item for item in shares.items() if item[1] >= LEAST_SHARE), key=lambda item: -item[1])
    told = ", ".join(f"{CAUSES.get(name, name)} {share:.0%}" for name, share in large)
    return f"the best layout's step is, on paper, {told}"


def mean_error(errors: Sequence[float]) -> str:
    """Say how far measured step times were from what was expected of them."""
    if not errors:
        return "no step time was measured"
    return f"step times were off by {sum(map(abs, errors)) / len(errors):.0%} from what was expected of them"
