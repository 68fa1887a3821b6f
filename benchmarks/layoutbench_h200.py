"""Turns sweeps measured on one H200 into landscapes that come with LayoutBench.

    python benchmarks/layoutbench_h200.py benchmarks/h200-landscapes-2026-11-17.csv

Beside the table lies a JSON file of the same name with the machine, the versions and the seconds that a trial takes to
start: the sweep ran in one process, so that `wall_s` has no start in it, and a trial is charged with both.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from pathlib import Path
from typing import Any

from layoutbench.build import build
from layoutbench.landscape import SHIPPED

SOURCE_ID = "h200_landscapes"
COLUMNS = {
    "model": "model",
    "layers": "num_layers",
    "hidden": "hidden",
    "ffn": "ffn_hidden",
    "heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "vocab": "vocab",
    "seq": "seq_len",
    "gbs": "gbs",
    "mbs": "mbs",
    "recompute": "recompute",
    "attention": "attention",
    "optimizer": "optimizer",
    "steps_s": "steps_s",
    "peak_allocated_mib": "max_allocated_mib",
    "peak_reserved_mib": "max_reserved_mib",
    "outcome": "outcome",
}


def main() -> None:
    """Write the landscapes of the tables that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=SHIPPED, help="default: where LayoutBench keeps its own")
    options = parser.parse_args()
    for table in options.tables:
        for path in convert(table, options.output):
            print(path)


def convert(table: Path, output: Path) -> list[Path]:
    """Write the landscapes of one sweep and return their files."""
    about = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
    with table.open(encoding="utf-8", newline="") as file:
        rows = [measured_row(row, about) for row in csv.DictReader(file)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, table.name)  # its name stands in the landscapes
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return build(path, output)


def measured_row(row: dict[str, str], about: dict[str, Any]) -> dict[str, str]:
    """Return a row of the sweep with the columns of a table of measured runs."""
    return {name: row[own] for own, name in COLUMNS.items()} | {
        "source_id": SOURCE_ID,
        "year": about["date"][:4],
        "framework": f"transformers {about['transformers']}, torch {about['torch']}",
        # Not recorded: the peaks are those of fp32 weights, gradients and AdamW, 16 bytes per parameter.
        "precision": "bf16-autocast",
        "gpu": about["device"].rpartition(" ")[2],
        "gpu_mem_gib": "139.8",
        "n_gpus": "1",
        "trial_wall_s": str(round(about["startup_s"] + float(row["wall_s"]), 2)),
    }


if __name__ == "__main__":
    main()
