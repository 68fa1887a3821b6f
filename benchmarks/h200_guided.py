"""Guided tuning against trying everything, with real Megatron-LM on one GPU: micro-batch and recomputation.

    python benchmarks/h200_guided.py guided --tree Megatron-LM --output guided.json
    python benchmarks/h200_guided.py exhaustive --tree Megatron-LM --without guided.json --output rest.json
    python benchmarks/h200_guided.py compare --parts guided.json rest.json --output both.json

Megatron-LM without Transformer Engine needs its tree on PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1. `guided` begins
with the calibration of published runs of other machines unless --calibration says otherwise, and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zenith_tune import PresetTuner
from zenith_tune.calibrate.calibration_file import default_calibration, save_calibration
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.strategies.guided.strategy import GuidedStrategy
from zenith_tune.study.parameters import Params, Value

SHAPE = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights "
    "--attention-dropout 0 --hidden-dropout 0"
)
PLAIN = (
    "--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion "
    "--no-rope-fusion --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --bf16"
)
RUN = (
    "--micro-batch-size 1 --global-batch-size 16 --log-throughput --log-interval 1 --eval-iters 0 "
    "--eval-interval 1000 --lr 1e-4"
)
LEFT_OUT = ("command", "folder")
KINDS = ("none", "selective", "full/uniform1")


class MicroBatchAndRecompute(MegatronLmPreset):
    """Search the micro-batch and three ways to recompute; everything else stays as in the command."""

    def __init__(self, micro_batches: list[int], tried: list[Params]) -> None:
        super().__init__(search="mbs+recompute", mbs_max=max(micro_batches))
        self.micro_batches, self.tried = micro_batches, tried

    def explain(self, params: Mapping[str, Value]) -> str | None:
        if params["recompute"] not in KINDS or params["mbs"] not in self.micro_batches or dict(params) in self.tried:
            return "not part of this comparison"
        return super().explain(params)

    def points(self) -> Any:
        """Yield the points of the comparison."""
        return (point for point in super().points() if self.explain(point) is None)

    def tables(self, command: str) -> None:
        """Leave it to the points."""


def main() -> None:
    """Run one of both, and write its trials as rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["guided", "exhaustive", "compare"])
    parser.add_argument("--tree", type=Path, default=Path(), help="the source tree of Megatron-LM")
    parser.add_argument("--parts", type=Path, nargs="*", default=[], help="compare: a guided study and the rest")
    parser.add_argument("--micro-batches", default="1,2,4,8")
    parser.add_argument("--without", type=Path, help="leave out what this file of trials has already")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--calibration", choices=["published", "package"], default="published")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    if options.how == "compare":
        rows = compare([json.loads(path.read_text(encoding="utf-8")) for path in options.parts])
        print(json.dumps(rows["summary"], indent=1))
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    command = f"torchrun --nproc-per-node 1 {options.tree}/pretrain_gpt.py {PLAIN} {SHAPE} {RUN}"
    with tempfile.TemporaryDirectory() as folder:
        rows = study(f"{command} --train-iters {options.iterations}", options, Path(folder))
    rows |= {"command": command, "argv": sys.argv[1:], "machine": machine()}
    options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def study(command: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the study and return its trials and what they cost."""
    known = json.loads(options.without.read_text(encoding="utf-8"))["trials"] if options.without else []
    sizes = [int(size) for size in options.micro_batches.split(",")]
    preset = MicroBatchAndRecompute(sizes, [trial["parameters"] for trial in known])
    how: dict[str, Any] = {"strategy": "grid", "early_stop": None}
    if options.how == "guided":
        how = {"strategy": GuidedStrategy(calibration=calibration(options.calibration, folder), learn=False)}
    started = time.monotonic()
    tuner = PresetTuner(command, preset, output_dir=folder / "out", study_name="study", baseline=False, **how)
    tuner.optimize()
    stored = json.loads((folder / "out" / "study" / "study.json").read_text(encoding="utf-8"))
    strategy = how["strategy"]
    return {
        "how": options.how,
        "calibration": options.calibration if options.how == "guided" else None,
        "seconds": round(time.monotonic() - started, 1),
        "trial_seconds": round(sum(trial["duration_s"] or 0.0 for trial in stored["trials"]), 1),
        "why_done": strategy.why_done() if isinstance(strategy, GuidedStrategy) else "every point was tried",
        "trials": [{name: trial[name] for name in trial if name not in LEFT_OUT} for trial in stored["trials"]],
    }


def compare(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how guided did against all trials together; no trial was ended early in either."""
    guided, every = parts[0]["trials"], [trial for part in parts for trial in part["trials"]]
    best = max(trial["value"] for trial in every if trial["value"] is not None)
    within = next(i for i, trial in enumerate(guided, start=1) if (trial["value"] or 0) >= best / 1.01)
    seconds, all_seconds = (sum(trial["duration_s"] for trial in trials) for trials in (guided, every))
    summary = {
        "layouts": len(every),
        "best_value": best,
        "unit": guided[0]["unit"],
        "guided_trials_to_1pct": within,
        "guided_trials_until_it_stopped": len(guided),
        "guided_gpu_seconds_to_1pct": round(sum(trial["duration_s"] for trial in guided[:within]), 1),
        "guided_gpu_seconds": round(seconds, 1),
        "exhaustive_gpu_seconds": round(all_seconds, 1),
        "share_pct": round(100 * seconds / all_seconds, 1),
        "ended_early": sum(trial.get("early") is not None for trial in every),
    }
    return {"summary": summary, "parts": parts}


def calibration(kind: str, folder: Path) -> str | None:
    """Return the file to begin with: published runs of other machines, or None for what the package has."""
    if kind == "package":
        return None
    path = folder / "published.json"
    save_calibration(default_calibration("megatron"), path)
    return str(path)


def machine() -> dict[str, str]:
    """Say what this ran on."""
    asked = ["nvidia-smi", "-L"] if shutil.which("nvidia-smi") else ["echo", "no GPU"]
    gpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().partition(" (UUID")[0]
    return {"gpu": gpu, "torch": version("torch"), "python": platform.python_version(), "date": time.strftime("%F")}


if __name__ == "__main__":
    main()
