"""Guided tuning against trying everything, with real Megatron-LM on one GPU: micro-batch and recomputation.

    python benchmarks/h200_guided.py guided --tree Megatron-LM --output guided.json
    python benchmarks/h200_guided.py exhaustive --tree Megatron-LM --without guided.json --output rest.json

Megatron-LM without Transformer Engine needs its tree on PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1. `guided` begins
with the calibration of published runs of other machines unless --calibration says otherwise, and keeps nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
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
from zenith_tune.parameters import Params, Value
from zenith_tune.presets.megatron_lm import MegatronLmPreset
from zenith_tune.strategies.guided import GuidedStrategy

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


def main() -> None:
    """Run one of both, and write its trials as rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["guided", "exhaustive"])
    parser.add_argument("--tree", type=Path, required=True, help="the source tree of Megatron-LM")
    parser.add_argument("--micro-batches", default="1,2,4,8")
    parser.add_argument("--without", type=Path, help="leave out what this file of trials has already")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--calibration", choices=["published", "package"], default="published")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
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
        "trials": [{name: value for name, value in trial.items() if name != "command"} for trial in stored["trials"]],
    }


def calibration(kind: str, folder: Path) -> str | None:
    """Return the file to begin with: published runs of other machines, or None for what the package has."""
    if kind == "package":
        return None
    path = folder / "published.json"
    save_calibration(default_calibration("megatron"), path)
    return str(path)


def machine() -> dict[str, str]:
    """Say what this ran on."""
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.strip()
    gpu = smi.partition(" (UUID")[0]
    return {"gpu": gpu, "torch": version("torch"), "python": platform.python_version(), "date": time.strftime("%F")}


if __name__ == "__main__":
    main()
