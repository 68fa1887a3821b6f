"""A script that runs Megatron-LM, or ms-swift's `megatron sft`, with a layout.

Options are held by their names with underscores; `True` is a switch.

Names as in Megatron-LM main of 2026-08-22: megatron/training/arguments.py, and the fields of TransformerConfig.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.presets.emission import Emission, Target
from zenith_tune.presets.megatron.command import LAYOUT_VARIABLE
from zenith_tune.presets.megatron.options import (
    CHUNKS,
    DUMPED_CHUNKS,
    OPTIONS,
    PIPELINE,
    RECOMPUTE,
    SEQUENCE_PARALLEL,
    VIRTUAL,
    Options,
    layout_notes,
    low_precision,
    megatron_options,
)
from zenith_tune.shell import plain_value
from zenith_tune.study.parameters import Value


def model_options(model: ModelSpec, seq_len: int) -> Options:
    """Return the options that build the model, the vocabulary left to the tokenizer."""
    experts = _expert_options(model) if model.num_experts else {}
    options: Mapping[str, Value | None] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
        **_attention_options(model),
        "position_embedding_type": "learned_absolute" if model.num_positions else "rope",
        "max_position_embeddings": max(model.num_positions, seq_len),
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        # The models with sinks are those like gpt-oss.
        "quick_geglu": model.gated_mlp and model.attention_sinks,
        "swiglu": model.gated_mlp and not model.attention_sinks,
        "disable_bias_linear": not model.linear_bias,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "mtp_num_layers": model.num_mtp_layers or None,
        **experts,
    }
    return {name: value for name, value in options.items() if value is not None and value is not False}


def _attention_options(model: ModelSpec) -> dict[str, Value | None]:
    if (mla := model.latent_attention) is not None:
        return {
            "multi_latent_attention": True,
            "q_lora_rank": mla.q_rank or None,
            "kv_lora_rank": mla.kv_rank,
            "qk_head_dim": mla.qk_nope_dim,
            "qk_pos_emb_head_dim": mla.qk_rope_dim,
            "v_head_dim": mla.v_dim,
            # The norms of its low-rank projections.
            "qk_layernorm": True,
        }
    is_grouped = model.num_kv_heads != model.num_heads
    return {
        "group_query_attention": is_grouped,
        "num_query_groups": model.num_kv_heads if is_grouped else None,
        "kv_channels": model.head_dim if model.head_dim * model.num_heads != model.hidden else None,
        "add_qkv_bias": model.qkv_bias and not model.linear_bias,
        "qk_layernorm": model.qk_norm,
        "softmax_type": "learnable" if model.attention_sinks else None,
    }


def _expert_options(model: ModelSpec) -> dict[str, Value | None]:
    dense_first = f"([0]*{model.num_dense_layers}+[1]*{model.num_moe_layers})"
    return {
        "num_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_ffn_hidden_size": model.moe_ffn_hidden,
        "moe_shared_expert_intermediate_size": model.shared_ffn_hidden or None,
        "moe_shared_expert_gate": model.shared_gate and bool(model.shared_ffn_hidden),
        "moe_layer_freq": dense_first if model.num_dense_layers else None,
    }


def model_notes(model: ModelSpec) -> list[str]:
    """Return what of the model no option here says."""
    notes = [f"vocabulary: {model.vocab} by --vocab-size, where the tokenizer has none of its own"]
    if not model.num_positions:
        notes.append("positions are taken to be rotary: add --rotary-base and scaling as the model has them")
    if model.num_experts:
        notes.append("the router's scores, groups and balancing are Megatron's defaults: add the model's own")
    if not model.gated_mlp:
        notes.append("the activation is Megatron's GeLU: add --squared-relu or what else the model has")
    if model.attention_sinks:
        notes.append("attention has sinks: add the model's windows, and its gate's offset and clamp")
    if model.embedding_norm:
        notes.append("the norm behind the embedding is none of Megatron's options")
    return notes


NEWER_THAN_HOPPER = ("b200", "b300", "gb200", "gb300")


REPLACED = frozenset((*OPTIONS.values(), *PIPELINE, CHUNKS, *RECOMPUTE, SEQUENCE_PARALLEL))
"""What a trial gives itself, or must be able to take away."""
MOCK_DATA = "--mock-data --tokenizer-type NullTokenizer --train-iters 30 --lr 1e-4 --eval-iters 0"
DATA_OPTIONS = ("--data-path", "--data-args-path", "--train-data-path", "--per-split-data-args-path")


def megatron_flags(target: Target) -> list[str]:
    """Return the flags of the layout in Megatron's spelling: hyphens, and switches without a value."""
    precision = target.job.precision
    options = {**megatron_options(target), "seq_length": target.job.seq_len}
    if precision != "fp32":
        options["fp16" if precision == "fp16" else "bf16"] = True
    return _flags(options | low_precision(precision, is_sharded=target.layout.zero > 0))


def model_flags(target: Target) -> list[str]:
    """Return the flags of the model."""
    options = {**model_options(target.model, target.job.seq_len), "vocab_size": target.model.vocab}
    return _flags(options | ({"transformer_impl": "local"} if target.job.framework.name == "megatron-local" else {}))


def emit_megatron(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to Megatron too: data and schedule."""
    flags = megatron_flags(target)
    setup = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if needs_one_connection(target) else []
    # Mock data and a schedule, for a script that is given none.
    patterns = " | ".join(f'*" {option} "*' for option in DATA_OPTIONS)
    data = [f'DATA=${{DATA-"{MOCK_DATA}"}}', f'case " $* " in {patterns}) DATA= ;; esac']
    setup += [_layout_variable(flags), *data]
    launch = f"torchrun --nproc-per-node {target.gpus_per_node} --nnodes {target.num_nodes}"
    if target.num_nodes > 1:
        launch += ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"'
    start = f'{launch} "${{PRETRAIN:-pretrain_gpt.py}}"'
    fixed = [flag for flag in flags if not _is_replaced(flag)]
    lines = [start, *model_flags(target), *fixed, f'${LAYOUT_VARIABLE} $DATA "$@"']
    notes = ["it trains on mock data: give yours, the tokenizer and the schedule as arguments of the script"]
    notes.append("tune it by: zenithtune optimize -- bash run.sh")
    notes += model_notes(target.model)
    if needs_one_connection(target):
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is set: Megatron asks for it with TP or CP before Blackwell")
    if target.num_nodes > 1:
        notes.append("start it on every node with MASTER_ADDR set")
    return Emission(file_name="run_megatron.sh", text=_script(target, lines, setup), notes=tuple(notes))


def _is_replaced(flag: str) -> bool:
    return flag.split()[0].replace("_", "-") in REPLACED


def _layout_variable(flags: Sequence[str]) -> str:
    """Return the variable that a trial, or a user, empties to give a layout of its own.

    Of two values the last counts, but what a layout must not have could not be taken away from outside.
    """
    words = " ".join(word for flag in flags if _is_replaced(flag) for word in shlex.split(flag))
    return f'{LAYOUT_VARIABLE}=${{{LAYOUT_VARIABLE}-"{words}"}}'


def _script(target: Target, lines: Sequence[str], setup: Sequence[str] = ()) -> str:
    """Return a shell script that runs one command, written over several lines."""
    # Without -f the shell might take a pipeline's layout for a pattern of files.
    script = ["#!/usr/bin/env bash", f"# {target.title}", "set -efuo pipefail", *setup]
    return "\n".join(script) + "\n" + " \\\n  ".join(lines) + "\n"


def needs_one_connection(target: Target) -> bool:
    """Return whether Megatron insists on CUDA_DEVICE_MAX_CONNECTIONS=1: before Blackwell, with TP or CP.

    A layout without may be tuned into one that has them.
    """
    return not target.cluster.gpu.name.lower().startswith(NEWER_THAN_HOPPER)


def _flags(options: Options) -> list[str]:
    named = ((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    return [option if value is True else f"{option} {shlex.quote(str(value))}" for option, value in named]


def swift_flags(target: Target) -> list[str]:
    """Return the flags in ms-swift's spelling: underscores, and a value for every switch.

    What it would do by default and the layout does not is said.
    """
    precision, is_sharded = target.job.precision, target.layout.zero > 0
    chunks = VIRTUAL[2:].replace("-", "_")
    options: Options = {
        "sequence_parallel": target.layout.sequence_parallel,
        "use_distributed_optimizer": is_sharded,
        "recompute_granularity": "none",
        **{DUMPED_CHUNKS if name == chunks else name: value for name, value in megatron_options(target).items()},
        "max_length": target.job.seq_len,
        # bfloat16 under everything below 16 bits too.
        "torch_dtype": {"fp16": "float16", "fp32": "float32"}.get(precision, "bfloat16"),
        **low_precision(precision, is_sharded=is_sharded),
    }
    return [f"--{name} {shlex.quote(plain_value(value))}" for name, value in options.items()]


def emit_ms_swift(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to ms-swift too: model, data and schedule."""
    env = f"NPROC_PER_NODE={target.gpus_per_node} NNODES={target.num_nodes}"
    flags = swift_flags(target)
    fixed = [flag for flag in flags if not _is_replaced(flag)]
    lines = [f"{env} megatron sft", *fixed, f'${LAYOUT_VARIABLE} "$@"']
    text = _script(target, lines, [_layout_variable(flags)])
    notes = ["give the model, the data and the schedule as arguments of the script"]
    notes.append("tune it by: zenithtune optimize -- bash run.sh, with the same arguments behind it")
    notes += layout_notes(target, "--mtp_num_layers")
    if target.num_nodes > 1:
        notes.append("start it on every node with NODE_RANK, MASTER_ADDR and MASTER_PORT set")
    return Emission(file_name="run_ms_swift.sh", text=text, notes=tuple(notes))
