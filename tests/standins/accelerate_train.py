"""Stands in for `accelerate launch` and a script behind it: reads the file as the launcher does and prints the hook's
lines, so that studies of every backend run in a fraction of a second and without GPUs.

    accelerate_train.py launch --config_file F train.py --batch_size 4

Like the real one it takes 2 for a context size that is left out, and counts data-parallel ranks without it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import yaml

WRAPPERS = {"MEGATRON_LM": "MegatronEngine", "DEEPSPEED": "DeepSpeedEngine", "FSDP": "FSDPModule"}
GIB = 2**30


def main() -> None:
    words = sys.argv[2:]
    at = next(index for index, word in enumerate(words) if word.endswith(".py"))
    launcher = argparse.ArgumentParser()
    launcher.add_argument("--config_file", required=True)
    launcher.add_argument("--deepspeed_config_file")
    launcher.add_argument("--mixed_precision")
    launch = launcher.parse_args(words[:at])
    script = argparse.ArgumentParser()
    script.add_argument("--batch_size", type=int, default=1)
    script.add_argument("--gpu_gib", type=float, default=80.0)
    script.add_argument("--own_tp", type=int, help="a degree that the script's own plugin insists on")
    script.add_argument("--ignores_mesh", action="store_true", help="shards over all, as an older Accelerate would")
    config = yaml.safe_load(Path(launch.config_file).read_text())
    if launch.deepspeed_config_file:
        config["deepspeed_json"] = json.loads(Path(launch.deepspeed_config_file).read_text())
    train(config, script.parse_args(words[at + 1 :]))


def train(config: dict[str, Any], options: argparse.Namespace) -> None:
    kind, world = config["distributed_type"], config["num_processes"]
    settings, ranks, steps = plugin(config, options, world)
    step_s, peak_gib = cost(kind, settings, options.batch_size, steps)
    if peak_gib > options.gpu_gib:
        sys.exit(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {peak_gib:.2f} GiB.")
    batch = options.batch_size * steps * ranks
    settings |= {"global_batch_size": batch} if kind == "MEGATRON_LM" else {}
    for rank in range(world):
        event = {"event": "prepared", "process": f"host:{rank}", "version": "0.0", "type": kind, "processes": world}
        wrapper = WRAPPERS.get(kind, "DistributedDataParallel")
        tell(
            {**event, "wrapper": wrapper, "accumulation": 1, "batch_sizes": [options.batch_size], "settings": settings}
        )
    noise, at_s = random.Random(0), 0.0
    for step in range(1, 13):
        at_s += step_s * (5 if step == 1 else noise.uniform(0.999, 1.001))
        passes = 1 if kind == "MEGATRON_LM" else steps
        tell({"event": "step", "step": step, "passes": passes, "seconds": at_s, "peak_bytes": round(peak_gib * GIB)})
    print(f"trained with a batch of {batch}")


def plugin(config: dict[str, Any], options: argparse.Namespace, world: int) -> tuple[dict[str, Any], int, int]:
    """Return the plugin's fields, the data-parallel ranks that Accelerate counts, and the micro-batches of a step."""
    if config["distributed_type"] == "MEGATRON_LM":
        part = {key.removeprefix("megatron_lm_"): value for key, value in config["megatron_lm_config"].items()}
        settings = {
            "tensor_model_parallel_size": options.own_tp or part["tp_degree"],
            "pipeline_model_parallel_size": part["pp_degree"],
            "context_parallel_size": part.get("context_parallel_size", 2),
            "num_micro_batches": part["num_micro_batches"],
            "sequence_parallel": part["sequence_parallelism"],
            "recompute_num_layers": part.get("recompute_num_layers", 1),
        }
        return settings, world // (part["tp_degree"] * part["pp_degree"]), part["num_micro_batches"]
    if "deepspeed_json" in config:
        part = config["deepspeed_json"]
        zero = {f"zero_optimization.{key}": value for key, value in part["zero_optimization"].items()}
        return {"zero_stage": part["zero_optimization"]["stage"], **zero}, world, part["gradient_accumulation_steps"]
    if config["distributed_type"] == "DEEPSPEED":
        part = config["deepspeed_config"]
        return {"zero_stage": part["zero_stage"]}, world, part["gradient_accumulation_steps"]
    return (
        sharding(config, options) if config["distributed_type"] == "FSDP" else {},
        world,
        int(os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")),
    )


def sharding(config: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what FSDP's plugin, the mesh and the compiler hold."""
    mesh = {} if options.ignores_mesh else config.get("parallelism_config", {})
    compiler = config.get("dynamo_config", {})
    return {
        "zero_stage": 3,
        "dp_replicate_size": mesh.get("parallelism_config_dp_replicate_size", 1),
        "dp_shard_size": mesh.get("parallelism_config_dp_shard_size", 1),
        "dynamo_backend": compiler.get("dynamo_backend", "NO"),
    }


def cost(kind: str, settings: dict[str, Any], mbs: int, steps: int) -> tuple[float, float]:
    """Return the seconds of a step and the memory that it takes: parallelism costs time and saves memory."""
    tp, pp = (settings.get(f"{name}_model_parallel_size", 1) for name in ("tensor", "pipeline"))
    recomputes = settings.get("recompute_num_layers", 0) > 0
    bubble = (pp - 1) / (steps + pp - 1)
    seconds = steps * (0.01 + 0.02 * mbs / tp / pp) * (1.33 if recomputes else 1.0) / (1 - bubble) + 0.01 * (tp - 1)
    seconds *= 0.9 if settings.get("dp_replicate_size", 1) > 1 else 1.0
    seconds *= 0.8 if settings.get("dynamo_backend") == "INDUCTOR" else 1.0
    seconds *= 0.9 if settings.get("zero_optimization.overlap_comm") else 1.0
    states = 120 / tp / pp if kind == "MEGATRON_LM" else 120 / (1 + 15 * (settings.get("zero_stage", 0) / 3))
    return seconds, states + mbs * (2 if recomputes else 8) / tp


def tell(event: dict[str, Any]) -> None:
    print(f"zenithtune: {json.dumps(event)}", file=sys.stderr)


if __name__ == "__main__":
    main()
