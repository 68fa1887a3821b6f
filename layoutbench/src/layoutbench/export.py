"""Landscapes for other tools: one CSV of all runs, and Syne Tune's repository of black boxes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from layoutbench.landscape import Landscape, LandscapeError, Run

COLUMNS = ("outcome", "step_s", "steps_s", "peak_memory_bytes", "cost_s")
OBJECTIVES = ("metric_step_s", "metric_cost_s", "metric_peak_memory_bytes")


def export_csv(landscapes: Sequence[Landscape], path: Path) -> None:
    """Write one row for each run, with what its landscape states and where it was published."""
    axes = list(dict.fromkeys(name for item in landscapes for name in item.axes))
    stated = ("name", "model", "layers", "hidden", "framework", "seq_len", "global_batch", "gpu", "num_gpus")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*stated, *(f"axis_{name}" for name in axes), *COLUMNS, "source", "url", "licence"))
        for item in landscapes:
            model, job, cluster = item.model, item.job, item.cluster
            head = [item.name, model["name"], model["layers"], model["hidden"], job["framework"], job["seq_len"]]
            head += [job.get("global_batch", ""), cluster["gpu"], item.num_gpus]
            tail = tuple(item.source[name] for name in ("id", "url", "licence"))
            for layout in item.layouts:
                choices = [layout.params.get(name, "") for name in axes]
                for run in layout.runs:
                    writer.writerow((*head, *choices, *_measured(run), *tail))


def _measured(run: Run) -> tuple[Any, ...]:
    step = median(run.steps_s) if run.steps_s else ""
    return run.outcome, step, " ".join(map(str, run.steps_s)), run.peak_memory_bytes or "", run.cost_s


def export_syne_tune(landscapes: Sequence[Landscape], folder: Path) -> None:
    """Write a folder for each landscape as Syne Tune's `load_blackbox` reads them: a table of one task.

    Repeated runs are its seeds, filled up in turn where a layout has fewer than others; a crash is not a number.
    """
    try:
        import fastparquet  # which Syne Tune reads the table with
        import pandas as pd
    except ImportError:
        problem = "Syne Tune's format needs pandas and fastparquet: pip install 'layoutbench[syne-tune]'"
        raise LandscapeError(problem) from None
    for item in landscapes:
        place = folder / f"layoutbench-{re.sub('[^a-z0-9.]+', '-', item.name.lower()).strip('-')}"
        place.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame([dict(layout.params) for layout in item.layouts])
        fastparquet.write(str(place / "hyperparameters.parquet"), table, compression="GZIP", write_index=False)
        most = max(len(layout.runs) for layout in item.layouts)
        # tasks, layouts, seeds, fidelities, objectives
        values = np.full((1, len(item.layouts), most, 1, len(OBJECTIVES)), np.nan, dtype=np.float32)
        for row, layout in enumerate(item.layouts):
            for seed in range(most):
                run = layout.runs[seed % len(layout.runs)]
                step = median(run.steps_s) if run.steps_s else np.nan
                values[0, row, seed, 0] = step, run.cost_s, run.peak_memory_bytes or np.nan
        np.save(place / "objectives_evaluations.npy", values, allow_pickle=False)
        np.save(place / "fidelities_values.npy", np.array([1]), allow_pickle=False)
        _write(place / "configspace.json", {name: _categories(list(axis)) for name, axis in item.axes.items()})
        _write(place / "fidelityspace.json", {"hp_trial": _integer(1, 1)})
        stated = {"source": dict(item.source), "model": dict(item.model), "cluster": dict(item.cluster)}
        _write(
            place / "metadata.json",
            {"objectives_names": list(OBJECTIVES), "task_names": [item.name], "metric_mode": "min", **stated},
        )


def _categories(choices: list[int | str]) -> dict[str, Any]:
    return {"domain_cls": "Categorical", "domain_kwargs": {"categories": choices}, **_UNIFORM}


def _integer(lower: int, upper: int) -> dict[str, Any]:
    return {"domain_cls": "Integer", "domain_kwargs": {"lower": lower, "upper": upper}, **_UNIFORM}


_UNIFORM = {"sampler_cls": "Uniform", "sampler_kwargs": {}}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
