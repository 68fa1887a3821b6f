"""A stand-in for a training script under DeepSpeed, and for its launcher: it refuses, fails and prints as they do.

    ds_train.py --launcher --num_gpus 2 train.py --deepspeed_config ds.json      what `deepspeed` would start
    ds_train.py --deepspeed ds.json --per_device_train_batch_size 4              a script of the Trainer's

Only Python is needed. Memory and speed follow simple laws, so that every test knows what is best.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

GIB = 2**30


def main() -> None:
    words = sys.argv[1:]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if words[:1] == ["--launcher"]:
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        parser = argparse.ArgumentParser()
        parser.add_argument("--num_gpus", type=int, default=1)
        parser.add_argument("--num_nodes", type=int, default=1)
        launcher = parser.parse_args(words[1:script])
        words, ranks = [*words[script + 1 :], "--local_rank=0"], launcher.num_gpus * launcher.num_nodes
    train(script_options(words), ranks)


def script_options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed", nargs="?", const="")
    parser.add_argument("--deepspeed_config")
    parser.add_argument("--local_rank")
    parser.add_argument("--output_dir")
    parser.add_argument("--model_name_or_path")
    parser.add_argument("--max_seq_length", type=int)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--gradient_checkpointing", nargs="?", const="True", default="False")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--params_billion", type=float, default=1.0)
    parser.add_argument("--gpu_gib", type=float, default=24.0)
    parser.add_argument("--activation_gib", type=float, default=1.0, help="of one sample")
    parser.add_argument("--crash_stage", type=int, help="a stage that ends in an exception")
    parser.add_argument("--hang_stage", type=int, help="a stage that never ends")
    return parser.parse_args(words)


def train(options: argparse.Namespace, ranks: int) -> None:
    path = options.deepspeed_config or options.deepspeed
    config: dict[str, Any] = json.loads(Path(path).read_text())
    is_trainer = options.output_dir is not None
    mbs, gas, batch = checked_batch(config, options, ranks, is_trainer)
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if isinstance(stage, list) or any(isinstance(value, list) for value in zero.values()):
        sys.exit("pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig: Input should be a value")
    if config.get("autotuning", {}).get("enabled"):
        print("Autotuning: done with running current ds config.")
        return
    print("[WARNING] 0 errors so far", file=sys.stderr)
    if stage == options.crash_stage:
        raise RuntimeError(f"stage {stage} of this stand-in is broken")
    if stage == options.hang_stage:
        time.sleep(3600)
    peak_gib = memory_gib(options, zero, stage, ranks, mbs)
    if peak_gib > options.gpu_gib:
        print(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {peak_gib:.2f} GiB.", file=sys.stderr)
        sys.exit(1)
    report(
        config, options, stage=stage, step_s=step_seconds(options, zero, stage, mbs, gas), batch=batch, peak=peak_gib
    )


def checked_batch(
    config: dict[str, Any], options: argparse.Namespace, ranks: int, is_trainer: bool
) -> tuple[int, int, int]:
    mbs, gas = options.per_device_train_batch_size, options.gradient_accumulation_steps
    wanted = {
        "train_micro_batch_size_per_gpu": mbs,
        "gradient_accumulation_steps": gas,
        "train_batch_size": mbs * gas * ranks,
    }
    if is_trainer:
        for key, value in wanted.items():
            if config.get(key, "auto") not in ("auto", value):
                raise ValueError(f"Please correct the DeepSpeed config values that mismatch TrainingArguments: {key}")
        return mbs, gas, wanted["train_batch_size"]
    mbs, gas, batch = (int(config.get(key) or 0) for key in wanted)
    # What is left out follows, as DeepSpeed has it.
    batch = batch or mbs * (gas or 1) * ranks
    mbs = mbs or batch // ranks // (gas or 1)
    gas = gas or batch // mbs // ranks
    assert batch == mbs * gas * ranks, f"train_batch_size is not equal to {batch} != {mbs} * {gas} * {ranks}"
    return mbs, gas, batch


def memory_gib(options: argparse.Namespace, zero: dict[str, Any], stage: int, ranks: int, mbs: int) -> float:
    params = options.params_billion * 1e9
    weights = 2 * params / (ranks if stage >= 3 else 1)
    gradients = 2 * params / (ranks if stage >= 2 else 1)
    optimizer = 0 if zero.get("offload_optimizer") else 16 * params / (ranks if stage >= 1 else 1)
    activations: float = options.activation_gib * mbs * (0.25 if options.gradient_checkpointing == "True" else 1.0)
    states: float = (weights + gradients + optimizer) / GIB
    return states + activations


def step_seconds(options: argparse.Namespace, zero: dict[str, Any], stage: int, mbs: int, gas: int) -> float:
    pace = 0.01 * (1.33 if options.gradient_checkpointing == "True" else 1.0)
    overlap = 0.001 if stage >= 2 and not zero.get("overlap_comm", True) else 0.0
    offload = 0.05 if zero.get("offload_optimizer") else 0.0
    seconds: float = gas * (pace * mbs + 0.01 + (0.002 if stage == 3 else 0.0)) + 0.001 * stage + overlap + offload
    return seconds


def report(
    config: dict[str, Any], options: argparse.Namespace, *, stage: int, step_s: float, batch: int, peak: float
) -> None:
    noise = random.Random(0)
    is_trainer = options.output_dir is not None
    for step in range(1, options.steps + 1):
        took = step_s * (5 if step == 1 else noise.uniform(0.999, 1.001))
        if config.get("wall_clock_breakdown"):
            parts = f"fwd: {300 * took:.2f} | bwd: {600 * took:.2f} | bwd_inner: 1.00 | step: {100 * took:.2f}"
            print(f"[Rank 0] time (ms) | {parts}")
        # Accelerate switches these lines off, and the first two steps are not timed.
        if not is_trainer and step > 2 and config.get("steps_per_print") and config.get("log_level") == "info":
            speed = f"RunningAvgSamplesPerSec={batch / took}, CurrSamplesPerSec={batch / took}"
            memory = f"MemAllocated={peak / 2:.2f}GB, MaxMemAllocated={peak:.2f}GB"
            print(f"[INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, {speed}, {memory}")
    print(f"trained {options.steps} steps at stage {stage}")
    if is_trainer:
        total_s = 1.1 * step_s * options.steps
        print({"train_runtime": total_s, "train_samples_per_second": round(batch * options.steps / total_s, 3)})


if __name__ == "__main__":
    main()
