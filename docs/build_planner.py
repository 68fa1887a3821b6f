"""Writes the planner's page for the site: answers computed ahead, in one file that needs no server and no network."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from zenith_tune.cli.plan import plan
from zenith_tune.serve.planner import planner_page

GRID = {
    "model": ("llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"),
    "gpu": ("a100-80", "h100", "h200", "b200"),
    "gpus": ("8", "64", "256", "1024"),
    "gbs": ("256", "1024"),
    "seq": ("4096", "8192"),
    "emit": ("megatron",),
}


def build(grid: Mapping[str, Sequence[str]], run: Callable[..., Iterable[Any]] = map) -> str:
    """Return the page with the answers to every choice of a grid; `run` is a map, perhaps of several processes."""
    choices = list(itertools.product(*grid.values()))
    keys = [f"{model} {gpu}x{gpus} {gbs} {seq} {emit}" for model, gpu, gpus, gbs, seq, emit in choices]
    points = dict(zip(keys, run(answer, choices), strict=True))
    packed = gzip.compress(json.dumps(points, separators=(",", ":")).encode(), mtime=0)
    return planner_page({name: list(values) for name, values in grid.items()}, base64.b64encode(packed).decode())


def answer(choice: tuple[str, ...]) -> Any:
    """Return what the command line says, to six digits."""
    model, gpu, gpus, gbs, seq, emit = choice
    options = f"--model {model} --cluster {gpu}x{gpus} --gbs {gbs} --seq {seq} --emit {emit} --top 5 --json"
    done = CliRunner().invoke(plan, options, standalone_mode=False, catch_exceptions=False)
    return json.loads(done.stdout, parse_float=lambda text: float(f"{float(text):.6g}"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(exist_ok=True)
    with Pool() as pool:
        target.write_text(build(GRID, pool.map), encoding="utf-8")
