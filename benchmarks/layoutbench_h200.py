"""Turns sweeps measured on one H200 into landscapes that come with LayoutBench.

    python benchmarks/layoutbench_h200.py benchmarks/results/h200-landscapes-2026-11-17.csv

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
    """Return a row of the sweep with what its trial would take, and without what LayoutBench has no column for."""
    kept = {name: value for name, value in row.items() if name not in ("loop", "step_time_s", "wall_s")}
    return kept | {"trial_wall_s": str(round(about["startup_s"] + float(row["wall_s"]), 2))}


if __name__ == "__main__":
    main()
