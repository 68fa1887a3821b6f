"""Rows of measured runs, written as people write them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.calibrate.measured_run import MeasuredRun

LLAMA = {
    "source_id": "ours",
    "framework": "Megatron-LM",
    "year": "2025",
    "model": "llama3-8b",
    "gpu": "H100",
    "n_gpus": "8",
    "num_layers": "32",
    "hidden": "4096",
    "ffn_hidden": "14336",
    "num_heads": "32",
    "num_kv_heads": "8",
    "vocab": "128256",
    "seq_len": "8192",
    "tp": "2",
    "mbs": "1",
    "gbs": "64",
}
GPT3 = LLAMA | {
    "model": "GPT-3 175B",
    "year": "2021",
    "gpu": "A100",
    "n_gpus": "1024",
    "num_layers": "96",
    "hidden": "12288",
    "ffn_hidden": "",
    "num_heads": "96",
    "num_kv_heads": "",
    "vocab": "51200",
    "seq_len": "2048",
    "tp": "8",
    "pp": "16",
    "gbs": "1536",
}


def table(*rows: dict[str, str]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(folder: Path, *rows: dict[str, str]) -> list[MeasuredRun]:
    """Write rows to a file and read them back as runs."""
    path = folder / "runs.csv"
    path.write_text(table(*rows), encoding="utf-8")
    return read_measured(path)
