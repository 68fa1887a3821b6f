"""Builds landscapes from tables of measured runs, one row per run, and notes where each row was published.

The columns are source_id, source_url, framework, gpu, gpu_mem_gib, n_gpus, model, num_layers, hidden, num_heads,
seq_len, mbs, gbs, outcome and a step time (steps_s, step_time_s or tokens_per_s_per_gpu); blank where not stated.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutbench.landscape import Landscape, LandscapeError, Layout, Run, write_landscape

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Say of a source that measured whole landscapes what a reader has to know."""

    licence: str
    first_rank_memory: bool = False
    """True: prints the memory of the first pipeline rank, which need not be the fullest."""
    fitted: tuple[str, ...] = ()
    """Tuners, or parts of them, that were fitted to it."""


NOT_SHIPPED = "licence of the figures not stated by the source; built by each user from the table, not redistributed"
OWN = "Apache-2.0, measured by this project"
ZENITHTUNE = ("zenithtune-packaged-calibration",)
"""The calibrations that come with ZenithTune, which therefore may not be judged there."""
SOURCES = {
    # Crashes of any kind are "oom" there; recomputation is not stated; layouts run twice differ a lot.
    "ultrascale_playbook": Source(licence=NOT_SHIPPED, first_rank_memory=True, fitted=ZENITHTUNE),
    "bloom_prequel": Source(licence=NOT_SHIPPED, fitted=ZENITHTUNE),
    "h200_": Source(licence=OWN, fitted=ZENITHTUNE),
}
"""By how a source_id begins; other sources tried too few layouts of one model, or changed more than the layout."""
FLAGS = ("FLAG", "CHECK", "INCONSISTENT", "PROXY", "STALE?")
"""Marks in the notes of rows that are no fair comparison; those are left out."""
SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")
RECOMPUTE = ("none", "selective", "full")
LEAST_LAYOUTS, LEAST_RAN = 5, 3
START_UP_S, NUM_STEPS = 60.0, 15
"""Of a trial whose duration was not recorded: a minute to start, as Megatron-LM on one H200 takes, and 15 steps."""
COST_ASSUMED = f"assumed: {START_UP_S:.0f} s to start and {NUM_STEPS} steps; one that crashes {START_UP_S:.0f} s"
GIB, MIB = 2**30, 2**20


def build(place: Path, output: Path) -> list[Path]:
    """Write a file for each landscape in a CSV file, or in those of a folder and its `published`; returns the files."""
    landscapes = landscapes_of(place)
    if not landscapes:
        raise LandscapeError(
            f"{str(place)!r} must hold measured runs of {', '.join(SOURCES)}*, but no landscape is there"
        )
    output.mkdir(parents=True, exist_ok=True)
    paths = []
    for landscape in landscapes:
        path = output / f"{re.sub('[^a-z0-9.]+', '-', landscape.name.lower()).strip('-')}.json"
        write_landscape(landscape, path)
        paths.append(path)
    return paths


def landscapes_of(place: Path) -> list[Landscape]:
    """Return every landscape of which enough layouts were measured."""
    groups: dict[tuple[str, ...], list[tuple[str, Row]]] = defaultdict(list)
    for path in _tables(place):
        for line, row in _rows(path):
            if _source(row) and _is_whole(row):
                names = ("source_id", "framework", "model", "num_layers", "hidden", "num_heads", "gpu", "n_gpus")
                key = tuple(row.get(name, "") for name in (*names, "seq_len", "gbs", "precision"))
                groups[key].append((f"{path.name}:{line}", row))
    found = [_landscape([row for _, row in rows], [where for where, _ in rows]) for rows in groups.values()]
    return sorted((item for item in found if item is not None), key=lambda item: item.name)


def _tables(place: Path) -> list[Path]:
    if not place.exists():
        raise LandscapeError(f"there is no {str(place)!r}: give a CSV file or a folder of measured runs")
    if not place.is_dir():
        return [place]
    files = [*place.glob("*.csv"), *place.glob("published/*.csv")]
    return sorted(path for path in files if not path.name.startswith("_"))


def _rows(path: Path) -> Iterable[tuple[int, Row]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            yield reader.line_num, {name: (value or "").strip() for name, value in row.items() if name}


def _source(row: Row) -> Source | None:
    return next((source for name, source in SOURCES.items() if row.get("source_id", "").startswith(name)), None)


def _is_whole(row: Row) -> bool:
    numbers = ("num_layers", "hidden", "num_heads", "n_gpus", "seq_len", "mbs")
    stated = all(_number(row, name) > 0 for name in numbers) and not row.get("probed_stage")
    flagged = any(flag in row.get("notes", "") for flag in FLAGS)
    return stated and not flagged and (row.get("outcome") in ("oom", "error") or bool(_steps(row)))


def _landscape(rows: Sequence[Row], places: Sequence[str]) -> Landscape | None:
    """Return the landscape of rows that differ in nothing but their layout, or None where there are too few."""
    first, source = rows[0], _source(rows[0])
    assert source is not None
    points = [_point(row) for row in rows]
    axes = {name: _choices(points, name) for name in points[0]}
    axes = {name: choices for name, choices in axes.items() if len(choices) > 1}
    # Runs that state no batch took a step after each micro-batch: they are compared by the time of the same samples.
    common = 0 if _number(first, "gbs") > 0 else math.lcm(*(int(row["mbs"]) for row in rows))
    runs: dict[tuple[int | str, ...], list[Run]] = defaultdict(list)
    for row, point in zip(rows, points, strict=True):
        scale = common // int(row["mbs"]) if common else 1
        runs[tuple(point[name] for name in axes)].append(_run(row, source, scale))
    layouts = tuple(
        Layout(params=dict(zip(axes, choices, strict=True)), runs=tuple(own)) for choices, own in runs.items()
    )
    ran = sum(math.isfinite(layout.step_s) for layout in layouts)
    if len(layouts) < LEAST_LAYOUTS or ran < LEAST_RAN:
        return None
    num_gpus = int(first["n_gpus"])
    fixed = {name: value for name, value in points[0].items() if name not in axes}
    job = {
        "framework": first["framework"],
        "year": _whole(first, "year"),
        "precision": first.get("precision"),
        "seq_len": int(first["seq_len"]),
        "global_batch": _whole(first, "gbs") or common * num_gpus,
        **fixed,
    }
    recorded = any(row.get("trial_wall_s") for row in rows)
    return Landscape(
        name=f"{first['model']} on {first['gpu']} x {num_gpus} ({first['source_id']}, {_shape(first)}, "
        f"sequence {first['seq_len']}, batch {job['global_batch']})",
        model=_stated(
            {"name": first["model"], "params_b": _number(first, "params_b") or None}
            | {ours: _whole(first, name) for ours, name in MODEL.items()}
        ),
        job=_stated(job),
        cluster=_stated(
            {
                "gpu": first["gpu"],
                "gpu_memory_gib": float(first["gpu_mem_gib"] or 0) or None,
                "num_gpus": num_gpus,
                "gpus_per_node": _whole(first, "gpus_per_node"),
            }
        ),
        axes=axes,
        layouts=layouts,
        source={
            "id": first["source_id"],
            "url": first.get("source_url") or "own measurement, see `rows`",
            "licence": source.licence,
            "rows": _ranges(places),
            "cost": "recorded wall time of each run" if recorded else COST_ASSUMED,
        },
        used_for_fitting=source.fitted,
    )


MODEL = {
    "layers": "num_layers",
    "hidden": "hidden",
    "ffn_hidden": "ffn_hidden",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "vocab": "vocab",
    "experts": "n_experts",
    "top_k": "top_k",
}
"""What a landscape says of a model, by the column of a table of measured runs."""


def _shape(row: Row) -> str:
    return f"{row['num_layers']} layers of {row['hidden']} with {row['num_heads']} heads"


def _point(row: Row) -> dict[str, int | str]:
    sizes: dict[str, int | str] = {name: _whole(row, name) or 1 for name in SIZES}
    recompute = row.get("recompute") or row.get("recompute_granularity") or "none"
    if recompute.startswith("full"):
        method = row.get("recompute_method") or "uniform"
        recompute = f"full/{method}{_whole(row, 'recompute_num_layers') or 1}"
    if row.get("gradient_checkpointing") == "1":
        recompute = "full/uniform1"
    options = {name: row[name] for name in ("attention", "optimizer", "seq_parallel") if row.get(name)}
    return {**sizes, "zero": _zero(row), "mbs": int(row["mbs"]), "recompute": recompute, **options}


def _zero(row: Row) -> int:
    """Return what is sharded over data-parallel ranks: 1 the optimizer, 2 and gradients, 3 and weights."""
    text = row.get("zero_stage_or_fsdp", "")
    if match := re.search("ZeRO-([0-3])", text):
        return int(match[1])
    return 3 if "FSDP" in text else int(row.get("distributed_optimizer") == "1")


def _choices(points: Sequence[Mapping[str, int | str]], name: str) -> list[int | str]:
    def rank(choice: int | str) -> tuple[int, int | str]:
        known = RECOMPUTE.index(str(choice).partition("/")[0]) if name == "recompute" else 0
        return known, choice

    found = {point.get(name, "") for point in points}
    return sorted(found, key=rank)


def _run(row: Row, source: Source, scale: int) -> Run:
    steps = tuple(step * scale for step in _steps(row)) if row["outcome"] == "ok" else ()
    middle = sorted(steps)[len(steps) // 2] if steps else 0.0
    peak = _number(row, "max_reserved_mib") * MIB or _number(row, "mem_per_gpu_gib") * GIB
    hidden = source.first_rank_memory and (_whole(row, "pp") or 1) > 1
    return Run(
        outcome=row["outcome"],
        steps_s=steps,
        peak_memory_bytes=peak if peak and steps and not hidden else None,
        cost_s=_number(row, "trial_wall_s") or START_UP_S + NUM_STEPS * middle,
    )


def _steps(row: Row) -> tuple[float, ...]:
    """Return the seconds of each steady step that is stated, or the one figure that stands for them."""
    if row.get("steps_s"):
        return tuple(float(step) for step in row["steps_s"].split())
    if step_s := _number(row, "step_time_s"):
        return (step_s,)
    rate = _number(row, "tokens_per_s_per_gpu") * _number(row, "n_gpus")
    return (_number(row, "gbs") * _number(row, "seq_len") / rate,) if rate and _number(row, "gbs") else ()


def _number(row: Row, name: str) -> float:
    """Return a figure of a row, 0 where it is blank or none."""
    try:
        value = float(row.get(name) or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < math.inf else 0.0


def _whole(row: Row, name: str) -> int | None:
    return int(_number(row, name)) or None


def _stated(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _ranges(places: Sequence[str]) -> str:
    """Return lines of tables in few words: `a.csv, lines 2-4 9`."""
    lines: dict[str, list[int]] = defaultdict(list)
    for place in places:
        name, _, line = place.rpartition(":")
        lines[name].append(int(line))
    return "; ".join(f"{name}, lines {_spans(sorted(numbers))}" for name, numbers in lines.items())


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
