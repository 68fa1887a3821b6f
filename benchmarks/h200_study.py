"""One guided study of real Megatron-LM on one GPU, from a user's ordinary command to a confirmed gain.

    python benchmarks/h200_study.py --tree Megatron-LM --output early.json
    python benchmarks/h200_study.py --tree Megatron-LM --output whole.json --no-early-stop
    python benchmarks/h200_study.py --tree Megatron-LM --output long.json --model moe-16 --iterations 100000 --limit 230

Megatron-LM without Transformer Engine needs its tree on PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1. Whatever else is
given goes to `zenithtune optimize` as it is. The rows are the events of `--json`: every trial with its duration, the
iterations that it ran and why it ended. `--study` keeps the study itself, which `zenithtune report` draws.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from h200_guided import PLAIN, SHAPE, machine

RUN = (
    "--micro-batch-size 1 --log-throughput --log-interval 1 --eval-iters 0 "
    "--eval-interval 1000 --lr 1e-4 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
)
EXPERTS = "--moe-router-topk 2 --moe-ffn-hidden-size 4096 --moe-router-load-balancing-type aux_loss"
SHORT, LONG = " --global-batch-size 8", " --global-batch-size 16"
MODELS = {
    "dense-4k": SHAPE + SHORT,
    "dense": SHAPE.replace("4096", "2048") + SHORT,
    "dense-8k": SHAPE.replace("4096", "8192") + LONG,
    "moe": SHAPE.replace("4096", "2048").replace("--num-layers 16", "--num-layers 12").replace("8192", "4096")
    + f" --num-experts 8 {EXPERTS}{SHORT}",
    "moe-16": SHAPE.replace("--num-layers 16", "--num-layers 12").replace(
        "ffn-hidden-size 8192", "ffn-hidden-size 4096"
    )
    + f" --num-experts 16 {EXPERTS}{LONG}",
}
"""What the user trains: dense models of 1.5B parameters, and of 3.1B and 5.5B with 8 and 16 experts in 12 layers; those
of batch 16 have iterations of 7 to 19 s."""
KEPT = (
    *("number", "label", "outcome", "value", "unit", "spread", "num_samples", "step_s", "peak_memory_bytes"),
    *("duration_s", "early", "why", "is_baseline", "cause"),
)


def main() -> None:
    """Run the study and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="the source tree of Megatron-LM")
    parser.add_argument("--model", choices=MODELS, default="dense-4k")
    parser.add_argument("--iterations", type=int, default=15, help="of the user's own command")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--study", type=Path, help="where to keep the study's own study.json")
    parser.add_argument("--limit", type=float, help="seconds after which the study is interrupted")
    options, more = parser.parse_known_args()
    command = f"torchrun --nproc-per-node 1 {options.tree}/pretrain_gpt.py {PLAIN} {MODELS[options.model]} {RUN}"
    learn = ["--strategy", "guided", "--strategy-args", "learn=false"]
    rows = study(f"{command} --train-iters {options.iterations}", [*learn, *more], options.study, limit_s=options.limit)
    options.output.write_text(json.dumps({**rows, "command": command, "argv": sys.argv[1:]}, indent=1) + "\n")
    print(json.dumps(rows["summary"], indent=1))


def study(
    command: str, more: list[str], keep: Path | None = None, cwd: Path | None = None, limit_s: float | None = None
) -> dict[str, Any]:
    """Return every run of the study, and what they cost together; after `limit_s` it is interrupted."""
    paths = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    with tempfile.TemporaryDirectory() as folder:
        tune = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "--output-dir", folder, "--json"]
        start = time.monotonic()
        job = subprocess.Popen(
            [*tune, *more, "--", *command.split()],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            out, _ = job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGINT)
            out, _ = job.communicate()
        seconds = time.monotonic() - start
        if keep is not None:
            keep.write_bytes(next(Path(folder).rglob("study.json")).read_bytes())
    events = [json.loads(line) for line in out.splitlines()]
    runs = [{name: event[name] for name in KEPT} for event in events if event["event"] == "trial_finished"]
    end = events[-1]
    return {
        "summary": {
            "seconds": round(seconds, 1),
            "gpu_seconds": round(sum(run["duration_s"] or 0.0 for run in runs), 1),
            "runs": len(runs),
            "why": end.get("why"),
            "verdict": end.get("verdict"),
        },
        "runs": runs,
        "notes": [event["text"] for event in events if event["event"] == "note"],
        "machine": machine(),
    }


if __name__ == "__main__":
    main()
