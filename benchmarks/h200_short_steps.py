"""Do steps of fewer micro-batches state the step of the whole batch? Real Megatron-LM, two sets of layouts on one GPU.

    python benchmarks/h200_short_steps.py --tree Megatron-LM --output short-steps.json --logs logs --seconds 540

Small layers, where the host sets the pace of micro-batches of 1, and wide ones, which the GPU does. The wide ones are
also one good command with a lever taken away at a time, and a rank's work at 1, 1.5 and 2 times the tokens that
balanced routing gives its experts, so that their logs show what `doctor` names and what `plan --imbalance` predicts.

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

from zenith_tune.evaluators.short_steps import ShortSteps
from zenith_tune.hooks.injection import HOOK_FOLDER, hook_events, hook_files
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
WIDE = SHAPE.replace("--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192", "--num-layers 4 --hidden-size 4096")
FUSED = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native"
FEW_EXPERTS = WIDE + " --ffn-hidden-size 8192 --num-experts 4 --moe-ffn-hidden-size 8192 --moe-router-topk"
WIDE += " --ffn-hidden-size 14336"
LAYOUTS |= {
    "wide": (WIDE, 2, 32, FUSED),
    "wide, no fused loss": (WIDE, 2, 32, ""),
    "wide, full recomputation": (WIDE, 2, 32, f"{FUSED} {FULL}"),
    "wide, selective recomputation": (WIDE, 2, 32, f"{FUSED} --recompute-granularity selective"),
    "wide, no fused SwiGLU": (WIDE, 2, 32, f"{FUSED} --no-bias-swiglu-fusion"),
    "wide, mbs 1": (WIDE, 1, 32, FUSED),
    "wide, 64 micro-batches": (WIDE, 1, 64, FUSED),
    "wide experts, balanced": (FEW_EXPERTS, 2, 32, f"2 {BALANCED} {FUSED}"),
    "wide experts, 1.5 times the tokens": (FEW_EXPERTS, 2, 32, f"3 {BALANCED} {FUSED}"),
    "wide experts, twice the tokens": (FEW_EXPERTS, 2, 32, f"4 {BALANCED} {FUSED}"),
    "wide experts, skewed": (FEW_EXPERTS, 2, 32, f"2 --moe-router-force-biased 2 {FUSED}"),
}
"""A choice more per token is half as much again for the experts of a rank, as a skewed router would send to it."""
Row = dict[str, Any]


def main() -> None:
    """Run the layouts and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="the source tree of Megatron-LM")
    parser.add_argument("--seconds", type=float, default=540.0, help="start no layout after this")
    parser.add_argument("--only", default="", help="layouts whose name begins with this")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--logs", type=Path, help="a folder for what the runs print")
    options = parser.parse_args()
    end, rows = time.monotonic() + options.seconds, []
    for name in LAYOUTS:
        if name.startswith(options.only) and time.monotonic() < end:
            log, seconds = run(options.tree, *LAYOUTS[name])
            if options.logs:
                options.logs.mkdir(exist_ok=True)
                (options.logs / f"{name.replace(', ', '-').replace(' ', '_')}.log").write_text(log, encoding="utf-8")
            rows.append({"layout": name, **compared(log), "seconds": seconds})
            print(as_text(rows[-1]), flush=True)
            found = {"rows": rows, "argv": sys.argv[1:], "machine": machine()}
            options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def run(tree: Path, model: str, mbs: int, gbs: int, more: str) -> tuple[str, float]:
    """Return what a launch of a layout prints, and the seconds that it takes."""
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
            [*program, *f"{PLAIN} {model} {more} {batch} {log_options}".split()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    return done.stdout, round(time.monotonic() - start, 1)


def compared(log: str) -> Row:
    """Return what short steps state after each from the fifth on, and what the whole ones took."""
    short = next((event["short_steps"] for event in hook_events(log) if "short_steps" in event), None)
    steps = read_steps(log.replace(PREFIX, "")).steps  # as they ran
    if short is None or len(steps) < len(short["numbers"]) + NUM_WHOLE:
        return {"failed": log[-4000:]}
    num_short = len(short["numbers"])
    own = [step.seconds or 0.0 for step in steps[num_short:]]
    whole_s, stated = statistics.median(own), {}
    for num in range(5, num_short + 1):
        try:
            found = MegatronEvaluator("step_time").measure(until(log, steps[num].position), {})
        except ValueError:  # the line is not known yet
            continue
        stated[num] = {"step_s": found.value, "error": found.error, "off": found.value / whole_s - 1}
    peaks = [read_steps(text).peak_bytes for text in (until(log, steps[num_short].position), log)]
    return {
        "numbers": short["numbers"],
        "whole": short["whole"],
        "steps_s": [step.seconds for step in steps],
        "whole_s": whole_s,
        "whole_spread": max(own) / min(own) - 1,
        "stated": stated,
        "peak_bytes": peaks,
        "cost_share": sum(step.seconds or 0.0 for step in steps[:num_short]) / (3 * whole_s),
    }


def until(log: str, position: int) -> str:
    """Return the lines of a log before that of a step."""
    return log[: log.rfind("\n", 0, position) + 1]


def as_text(row: Row) -> str:
    """Say in one line how a layout did."""
    if "failed" in row:
        return f"{row['layout']}: failed\n{row['failed']}"
    stated = ", ".join(
        f"after {num}: {found['off']:+.2%} (error {found['error']:.2%})" for num, found in row["stated"].items()
    )
    peaks = " and ".join(f"{(value or 0) / 2**30:.2f} GiB" for value in row["peak_bytes"])
    return (
        f"{row['layout']}: {row['whole_s']:.3f} s (spread {row['whole_spread']:.2%}), {stated or 'nothing stated'}; "
        f"short and whole took {peaks}, the short ones {row['cost_share']:.0%} of three whole; {row['seconds']} s"
    )


if __name__ == "__main__":
    main()
