"""A script that runs Megatron-LM with a layout."""

from __future__ import annotations

import shlex

from zenith_tune.emit.megatron_model import model_notes, model_options
from zenith_tune.presets.emission import Emission, Target
from zenith_tune.presets.megatron_lm.options import Options, low_precision, megatron_options

NEWER_THAN_HOPPER = ("b200", "b300", "gb200", "gb300")
LOCAL = "megatron-local"


def megatron_flags(target: Target) -> list[str]:
    """Return the flags of the layout in Megatron's spelling: hyphens, and switches without a value."""
    return _flags({**megatron_options(target), "seq_length": target.job.seq_len, **_precision(target)})


def model_flags(target: Target) -> list[str]:
    """Return the flags of the model."""
    local: Options = {"transformer_impl": "local"} if target.job.framework.name == LOCAL else {}
    return _flags({**model_options(target.model, target.job.seq_len), **local})


def emit_megatron(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to Megatron too: data and schedule.

    It stands between the model and the layout, because of two values Megatron takes the last.
    """
    connections = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if needs_one_connection(target) else []
    launch = f"torchrun --nproc-per-node {target.gpus_per_node} --nnodes {target.num_nodes}"
    if target.num_nodes > 1:
        launch += ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"'
    start = f'{launch} "${{PRETRAIN:-pretrain_gpt.py}}"'
    lines = [start, *model_flags(target), '"$@"', *megatron_flags(target)]
    script = ["#!/usr/bin/env bash", f"# {target.title}", "set -euo pipefail", *connections]
    text = "\n".join(script) + "\n" + " \\\n  ".join(lines) + "\n"
    return Emission(file_name="run_megatron.sh", text=text, notes=_notes(target))


def needs_one_connection(target: Target) -> bool:
    """Tell whether Megatron insists on CUDA_DEVICE_MAX_CONNECTIONS=1: before Blackwell, with TP or CP."""
    is_new = target.cluster.gpu.name.lower().startswith(NEWER_THAN_HOPPER)
    return not is_new and (target.layout.tp > 1 or target.layout.cp > 1)


def _flags(options: Options) -> list[str]:
    return [_flag(name, value) for name, value in options.items()]


def _flag(name: str, value: int | str | bool) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {shlex.quote(str(value))}"


def _precision(target: Target) -> Options:
    precision = target.job.precision
    if precision == "fp32":
        return {}
    return {"fp16" if precision == "fp16" else "bf16": True, **low_precision(precision)}


def _notes(target: Target) -> tuple[str, ...]:
    notes = ["give the data, the tokenizer and the schedule as arguments of the script"]
    notes += model_notes(target.model)
    if needs_one_connection(target):
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is set: Megatron asks for it with TP or CP before Blackwell")
    if target.num_nodes > 1:
        notes.append("start it on every node with MASTER_ADDR set")
    return tuple(notes)
