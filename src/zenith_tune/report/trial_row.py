"""What every table shows of a trial, by the figures that a study's digest has of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenith_tune.units import format_bytes, format_gain, format_seconds, format_spread, format_value


def trial_cells(trial: Mapping[str, Any], *columns: str) -> list[str]:
    """Return the texts of these columns; what is not known is shown as nothing."""
    value, gain, memory = trial["value"], trial["gain"], trial["memory_bytes"]
    step, duration = (trial.get(name) for name in ("step_s", "duration_s"))
    cells = {
        "trial": trial["name"],
        "layout": trial["label"],
        "state": trial["state"],
        "value and spread": "" if value is None else format_value(value) + format_spread(trial["half_width"]),
        "gain": "" if gain is None or trial["is_baseline"] else format_gain(gain),
        "step": "" if step is None else format_seconds(step),
        "memory": format_bytes(memory) if memory else "",
        "time": "" if duration is None else format_seconds(duration),
    }
    return [cells[column] for column in columns]
