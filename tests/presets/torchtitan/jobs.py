"""Jobs of torchtitan and what it logs of them.

The lines of steps were printed by `MetricsProcessor.log` of torchtitan 0.1.0 and 0.2.2 (components/metrics.py; 0.3.0
prints those of 0.2.2), called with figures of our own. The trainer's line is that of `Trainer.__init__` (0.2.2 on two
CPU ranks); settings and arguments of the model have the form of `Trainer.Config.to_dict` (0.3.0) and of the arguments
that 0.2.2 prints when it builds the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zenith_tune.presets.torchtitan.preset import TorchTitanPreset

FRONT = "[titan] 2026-11-16 22:53:26,224 - root - INFO - "
FIRST_STEP = (
    "\x1b[31mstep: {step:2}  \x1b[32mloss:  8.1235  \x1b[33mmemory: 12.34GiB(15.60%)  \x1b[34mtps: {tps:,}  "
    "\x1b[36mtflops: 409.60  \x1b[35mmfu: 41.42%\x1b[39m"
)
STEP = (
    "\x1b[31mstep: {step:2}  \x1b[32mloss:  {loss}  \x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[38;2;54;234;195m"
    "memory: {memory:5.2f}GiB(15.60%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 409.60  \x1b[35mmfu: 41.42%\x1b[39m"
)
VALIDATION = (
    "\x1b[33mvalidate step: {step:2}  \x1b[32mloss:  8.1000  \x1b[38;2;54;234;195mmemory: 90.00GiB(99.00%)  "
    "\x1b[34mtps: 1\x1b[39m"
)
READY = (
    "Trainer is initialized with local batch size 2, global batch size {gbs}, gradient accumulation steps 1, "
    "sequence length {seq}, total steps 4 (warmup 200)"
)
READY_IN_TOKENS = (
    "Trainer is initialized with 16384 tokens per DP rank, {tokens} tokens per train step, gradient accumulation "
    "steps 1, maximum context length {seq}, total steps 4 (warmup 2)"
)
SIZE = "\x1b[34mModel llama3 debugmodel \x1b[31msize: {params:,} total parameters\x1b[39m"
ARGUMENTS = {"dim": 256, "n_layers": 6, "n_heads": 16, "n_kv_heads": None, "vocab_size": 2048, "multiple_of": 256}
NUM_PARAMS = 6_163_712
"""As 0.2.2 and 0.3.0 count those of llama3 debugmodel."""
SETTINGS: dict[str, Any] = {
    "training": {"local_batch_size": 8, "global_batch_size": -1, "seq_len": 2048, "steps": 20},
    "parallelism": {"data_parallel_shard_degree": -1, "pipeline_parallel_schedule": "Interleaved1F1B"},
    "activation_checkpoint": {"preserve_rng_state": True, "force_recompute_mm_shapes_by_fqns": ["moe.router.gate"]},
    "compile": {"enable": False, "enable_async_tensor_parallel": False},
}
TOKEN_SETTINGS = {
    **SETTINGS,
    "training": {
        "num_tokens_per_microbatch_per_dp_rank": 16_384,
        "num_tokens_per_train_step": -1,
        "max_context_length": 2048,
    },
}

LAUNCH = "torchrun --nproc-per-node {num_gpus} --tee 3 -m torchtitan.train"
OF_PYTHON = f"{LAUNCH.format(num_gpus=8)} --module llama3 --config llama3_debugmodel"


def log(*lines: str, rank: int | None = 0) -> str:
    """Return lines as torchtitan logs them, and torchrun passes them on."""
    mark = "" if rank is None else f"[rank{rank}]:"
    texts = "\n".join(FRONT + line for line in lines).split("\n")
    return "".join(f"{mark}{text}\n" for text in texts)


def steps(*speeds: int, loss: str = "8.12346", memory: float = 12.34) -> list[str]:
    """Return a line for each step."""
    return [STEP.format(step=at, tps=tps, loss=loss, memory=memory) for at, tps in enumerate(speeds, start=1)]


def model_by_parts(*, num_layers: int = 6, experts: bool = False) -> dict[str, Any]:
    """Return the description of a model as 0.3.0 has it."""
    linear = {"in_features": 256, "out_features": 768}
    moe = {
        "num_experts": 8,
        "routed_experts": {"inner_experts": {"dim": 256, "hidden_dim": 256}, "token_dispatcher": {"top_k": 3}},
        "router": {"top_k": 3},
        "shared_experts": {"w1": {"in_features": 256, "out_features": 512}},
    }
    dense = {"w1": linear, "w2": {"in_features": 768, "out_features": 256}, "w3": linear}
    layer = {
        "attention": {"n_heads": 16, "qkv_linear": {"head_dim": 16, "n_kv_heads": 16}, "qk_norm": None},
        "feed_forward": None if experts else dense,
        "moe": moe if experts else None,
    }
    return {"dim": 256, "vocab_size": 2048, "layers": [layer] * num_layers, "enable_weight_tying": False}


def settings_log(settings: dict[str, Any], *, experts: bool = False) -> str:
    """Return what a run prints of a configuration in Python."""
    spec = {"name": "llama3", "flavor": "debugmodel", "model": model_by_parts(experts=experts)}
    text = f"Running with configs: {json.dumps({'model_spec': spec, **settings}, indent=2)}"
    size = [] if experts else [SIZE.format(params=NUM_PARAMS)]
    return log(text, *size)


TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
[checkpoint]
enable = true
[metrics]
enable_tensorboard = true
"""


def of_file(folder: Path, *options: str, toml: str = TOML, num_gpus: int = 8) -> str:
    """Return a command whose settings stand in a TOML."""
    path = folder / "job.toml"
    path.write_text(toml)
    return " ".join([LAUNCH.format(num_gpus=num_gpus), f"--job.config_file {path}", *options])


def bound(command: str, **arguments: Any) -> TorchTitanPreset:
    """Return the preset of a command, on machines that are named."""
    preset = TorchTitanPreset(**{"cluster": "h100x64", **arguments})
    preset.bind(command)
    return preset


def seen(
    settings: dict[str, Any], command: str = OF_PYTHON, *, experts: bool = False, **given: Any
) -> TorchTitanPreset:
    """Return the preset of a configuration in Python, after the run of its command."""
    preset = bound(command, **given)
    preset.read_baseline(settings_log(settings, experts=experts))
    return preset
