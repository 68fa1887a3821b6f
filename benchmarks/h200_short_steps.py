"""Do steps of fewer micro-batches state the step of the whole batch? Real Megatron-LM, eleven layouts on one GPU.

    python benchmarks/h200_short_steps.py --tree Megatron-LM --output short-steps.json --seconds 540

Megatron-LM without Transformer Engine needs its tree on PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1. One launch of
each layout begins with the short steps of `zenithtune optimize` and continues with whole ones, which are compared with
what the short ones state after five of them and after all, and so is the peak of memory. No layout starts after
--seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from h200_guided import PLAIN, SHAPE, machine

from zenith_tune.evaluators.base import Measurement
from zenith_tune.evaluators.short_steps import ShortSteps
from zenith_tune.hooks.injection import HOOK_FOLDER, hook_files
from zenith_tune.hooks.process import PREFIX
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron.log import read_steps

NUM_WHOLE = 4
DENSE = SHAPE.replace("4096", "2048")
EXPERTS = DENSE.replace("--num-layers 16", "--num-layers 8").replace("8192", "4096") + (
    " --num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --moe-router-load-balancing-type aux_loss"
)
BALANCED = "--moe-router-force-load-balancing"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
LAYOUTS = {
    "dense": (DENSE, 1, 32, ""),
    "dense, mbs 2": (DENSE, 2, 32, ""),
    "dense, mbs 4": (DENSE, 4, 32, ""),
    "dense, 96 micro-batches": (DENSE, 1, 96, ""),
    "dense, full recomputation": (DENSE, 1, 32, FULL),
    "dense, mbs 2, full recomputation": (DENSE, 2, 32, FULL),
    "dense, mbs 2, selective": (DENSE, 2, 32, "--recompute-granularity selective"),
    "dense, distributed optimizer": (DENSE, 1, 32, "--use-distributed-optimizer"),
    "16 experts": (EXPERTS, 1, 32, BALANCED),
    "16 experts, mbs 2": (EXPERTS, 2, 32, BALANCED),
    "16 experts, own routing": (EXPERTS, 1, 32, ""),
}
"""Model, micro-batch, global batch and further options; own routing is where trials have whole steps alone."""
Row = dict[str, Any]


def main() -> None:
    """Run the layouts and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="the source tree of Megatron-LM")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no layout after this")
    parser.add_argument("--only", choices=LAYOUTS, nargs="*", default=list(LAYOUTS))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    end, rows = time.monotonic() + options.seconds, []
    for name in options.only:
        if time.monotonic() < end:
            rows.append({"layout": name, **run(options.tree, *LAYOUTS[name])})
            print(as_text(rows[-1]), flush=True)
            found = {"rows": rows, "argv": sys.argv[1:], "machine": machine()}
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run(tree: Path, model: str, mbs: int, gbs: int, more: str) -> Row:
    """Return what a launch of a layout shows."""
    short = ShortSteps.of(gbs // mbs)
    assert short is not None
    num_steps = len(short.numbers) + NUM_WHOLE
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(tree / "pretrain_gpt.py")]
    batch = f"--micro-batch-size {mbs} --global-batch-size {gbs} --train-iters {num_steps} --eval-interval 99 --lr 1e-4"
    log_options = f"--log-throughput --log-interval 1 --log-memory-interval {num_steps} --eval-iters 0"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in hook_files({"short_steps": asdict(short)}).items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        paths = [str(Path(folder) / HOOK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        start = time.monotonic()
        done = subprocess.run(
            [*program, *f"{PLAIN} {model} {batch} {log_options} {more}".split()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    seconds = round(time.monotonic() - start, 1)
    if done.returncode or PREFIX not in done.stdout:
        return {"failed": done.stdout[-8000:], "seconds": seconds}
    return {**compared(done.stdout, short), "seconds": seconds}


def compared(log: str, short: ShortSteps) -> Row:
    """Return what short steps state, and what the whole ones took."""
    steps = read_steps(log.replace(PREFIX, "")).steps  # as they ran
    own = [step.seconds or 0.0 for step in steps[len(short.numbers) :]]
    whole_s, shorts = statistics.median(own), {}
    for num in (5, len(short.numbers)):
        stated = MegatronEvaluator("step_time").measure(until(log, steps[num].position), {})
        shorts[f"after {num}"] = {"step_s": stated.value, "error": stated.error, "off": stated.value / whole_s - 1}
    peak: Measurement = MegatronEvaluator("step_time").measure(log, {})
    early = MegatronEvaluator("step_time").measure(until(log, steps[len(short.numbers)].position), {})
    return {
        "numbers": short.numbers,
        "whole": short.whole,
        "steps_s": [step.seconds for step in steps],
        "whole_s": whole_s,
        "whole_spread": max(own) / min(own) - 1,
        **shorts,
        "peak_bytes": {"short": early.peak_memory_bytes, "whole": peak.peak_memory_bytes},
        "cost_share": sum(step.seconds or 0.0 for step in steps[:5]) / (3 * whole_s),
    }


def until(log: str, position: int) -> str:
    """Return the lines of a log before that of a step."""
    return log[: log.rfind("\n", 0, position) + 1]


def as_text(row: Row) -> str:
    """Say in one line how a layout did."""
    if "failed" in row:
        return f"{row['layout']}: failed\n{row['failed']}"
    stated = ", ".join(
        f"{name}: {found['off']:+.2%} (error {found['error']:.2%})"
        for name, found in row.items()
        if name.startswith("after")
    )
    peaks = " and ".join(f"{value / 2**30:.2f} GiB" for value in row["peak_bytes"].values())
    return (
        f"{row['layout']}: {row['whole_s']:.3f} s (spread {row['whole_spread']:.2%}), {stated}; "
        f"short and whole took {peaks}, five short ones {row['cost_share']:.0%} of three whole; {row['seconds']} s"
    )


if __name__ == "__main__":
    main()
