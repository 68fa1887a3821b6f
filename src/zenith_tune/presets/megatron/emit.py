"""A script that runs ms-swift's `megatron sft` with a layout."""

from __future__ import annotations

import shlex

from zenith_tune.presets.emission import Emission, Target
from zenith_tune.presets.megatron_lm.options import Options, layout_notes, low_precision, megatron_options
from zenith_tune.study.parameters import Value

RENAMED = {"num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size"}
TYPES = {"fp16": "float16", "fp32": "float32"}
"""What weights are, by precision; bfloat16 under everything below 16 bits too."""


def swift_options(target: Target) -> Options:
    """Return the options by ms-swift's names; what it would do by default and the layout does not is said."""
    options = {RENAMED.get(name, name): value for name, value in megatron_options(target).items()}
    said: Options = {
        "sequence_parallel": target.layout.sequence_parallel,
        "use_distributed_optimizer": target.layout.zero > 0,
        "recompute_granularity": "none",
    }
    precision = target.job.precision
    types: Options = {"torch_dtype": TYPES.get(precision, "bfloat16"), **low_precision(precision)}
    return {**said, **options, "max_length": target.job.seq_len, **types}


def swift_flags(target: Target) -> list[str]:
    """Return the flags in ms-swift's spelling: underscores, and a value for every switch."""
    return [f"--{name} {_word(value)}" for name, value in swift_options(target).items()]


def emit_ms_swift(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to ms-swift too: model, data and schedule."""
    env = f"NPROC_PER_NODE={target.gpus_per_node} NNODES={target.num_nodes}"
    lines = [f'{env} megatron sft "$@"', *swift_flags(target)]
    script = ["#!/usr/bin/env bash", f"# {target.title}", "set -euo pipefail"]
    text = "\n".join(script) + "\n" + " \\\n  ".join(lines) + "\n"
    notes = ["give the model, the data and the schedule as arguments of the script"]
    notes += layout_notes(target, "--mtp_num_layers")
    if target.num_nodes > 1:
        notes.append("start it on every node with NODE_RANK, MASTER_ADDR and MASTER_PORT set")
    return Emission(file_name="run_ms_swift.sh", text=text, notes=tuple(notes))


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))
