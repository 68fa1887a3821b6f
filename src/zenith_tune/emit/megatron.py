"""A script that runs Megatron-LM with a layout."""

from __future__ import annotations

import shlex

from zenith_tune.emit.emission import Emission, Target
from zenith_tune.emit.megatron_options import layout_notes, megatron_options

NEWER_THAN_HOPPER = ("b200", "b300", "gb200", "gb300")
PRECISIONS = {"bf16": ("--bf16",), "fp16": ("--fp16",), "fp32": ()}


def megatron_flags(target: Target) -> list[str]:
    """Return the flags in Megatron's spelling: hyphens, and switches without a value."""
    options = {**megatron_options(target), "seq_length": target.job.seq_len}
    return [*(_flag(name, value) for name, value in options.items()), *_precision(target.job.precision)]


def emit_megatron(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to Megatron too: model, data and schedule."""
    connections = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if needs_one_connection(target) else []
    launch = f"torchrun --nproc-per-node {target.gpus_per_node} --nnodes {target.num_nodes}"
    if target.num_nodes > 1:
        launch += ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"'
    lines = [f'{launch} "${{PRETRAIN:-pretrain_gpt.py}}" "$@"', *megatron_flags(target)]
    script = ["#!/usr/bin/env bash", f"# {target.title}", "set -euo pipefail", *connections]
    text = "\n".join(script) + "\n" + " \\\n  ".join(lines) + "\n"
    return Emission(file_name="run_megatron.sh", text=text, notes=_notes(target))


def needs_one_connection(target: Target) -> bool:
    """Tell whether Megatron insists on CUDA_DEVICE_MAX_CONNECTIONS=1: before Blackwell, with TP or CP."""
    is_new = target.cluster.gpu.name.lower().startswith(NEWER_THAN_HOPPER)
    return not is_new and (target.layout.tp > 1 or target.layout.cp > 1)


def _flag(name: str, value: int | str | bool) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {shlex.quote(str(value))}"


def _precision(precision: str) -> tuple[str, ...]:
    if precision in PRECISIONS:
        return PRECISIONS[precision]
    if "fp4" in precision:
        return ("--bf16", "--fp4-format e2m1")
    recipe = "mxfp8" if precision == "mxfp8" else "tensorwise"
    return ("--bf16", "--fp8-format hybrid", f"--fp8-recipe {recipe}")


def _notes(target: Target) -> tuple[str, ...]:
    notes = ["give the model, the data and the schedule as arguments of the script"]
    notes += layout_notes(target, "--mtp-num-layers")
    if needs_one_connection(target):
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is set: Megatron asks for it with TP or CP before Blackwell")
    if target.num_nodes > 1:
        notes.append("start it on every node with MASTER_ADDR set")
    return tuple(notes)
