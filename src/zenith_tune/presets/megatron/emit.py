"""A script that runs Megatron-LM, or ms-swift's `megatron sft`, with a layout.

Options are held by their names with underscores; `True` is a switch.

Names as in Megatron-LM main of 2026-08-22: megatron/training/arguments.py, and the fields of TransformerConfig.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.presets.emission import Emission, Target
from zenith_tune.presets.megatron.command import LAYOUT_VARIABLE
from zenith_tune.presets.megatron.options import (
    CHUNKS,
    OPTIONS,
    PIPELINE,
    RECOMPUTE,
    SEQUENCE_PARALLEL,
    Options,
    layout_notes,
    low_precision,
    megatron_options,
)
from zenith_tune.shell import plain_value


def model_options(model: ModelSpec, seq_len: int) -> Options:
    """Return the options that build the model, the vocabulary left to the tokenizer."""
    sizes: Options = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
    }
    return {**sizes, **_attention(model), **_positions(model, seq_len), **_layers(model), **_experts(model)}


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


def _attention(model: ModelSpec) -> Options:
    if model.latent_attention:
        return _latent(model)
    options = Options()
    if model.num_kv_heads != model.num_heads:
        options |= {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
    if model.head_dim * model.num_heads != model.hidden:
        options["kv_channels"] = model.head_dim
    switches = {
        "add_qkv_bias": model.qkv_bias and not model.linear_bias,
        "qk_layernorm": model.qk_norm,
    }
    options |= _on(switches)
    return {**options, "softmax_type": "learnable"} if model.attention_sinks else options


def _latent(model: ModelSpec) -> Options:
    mla = model.latent_attention
    assert mla is not None
    query: Options = {"q_lora_rank": mla.q_rank} if mla.q_rank else {}
    return {
        "multi_latent_attention": True,
        **query,
        "kv_lora_rank": mla.kv_rank,
        "qk_head_dim": mla.qk_nope_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_dim,
        "v_head_dim": mla.v_dim,
        # The norms of its low-rank projections.
        "qk_layernorm": True,
    }


def _positions(model: ModelSpec, seq_len: int) -> Options:
    kind = "learned_absolute" if model.num_positions else "rope"
    return {"position_embedding_type": kind, "max_position_embeddings": max(model.num_positions, seq_len)}


def _layers(model: ModelSpec) -> Options:
    norm: Options = {"normalization": "LayerNorm" if model.norm_bias else "RMSNorm"}
    switches = {
        # The models with sinks are those like gpt-oss.
        "quick_geglu": model.gated_mlp and model.attention_sinks,
        "swiglu": model.gated_mlp and not model.attention_sinks,
        "disable_bias_linear": not model.linear_bias,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
    }
    further: Options = {"mtp_num_layers": model.num_mtp_layers} if model.num_mtp_layers else {}
    return {**norm, **_on(switches), **further}


def _experts(model: ModelSpec) -> Options:
    if not model.num_experts:
        return {}
    options: Options = {
        "num_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_ffn_hidden_size": model.moe_ffn_hidden,
    }
    if model.shared_ffn_hidden:
        options["moe_shared_expert_intermediate_size"] = model.shared_ffn_hidden
        options |= _on({"moe_shared_expert_gate": model.shared_gate})
    if model.num_dense_layers:
        options["moe_layer_freq"] = f"([0]*{model.num_dense_layers}+[1]*{model.num_moe_layers})"
    return options


def _on(switches: dict[str, bool]) -> Options:
    return {name: True for name, is_on in switches.items() if is_on}


NEWER_THAN_HOPPER = ("b200", "b300", "gb200", "gb300")
LOCAL = "megatron-local"


REPLACED = frozenset((*OPTIONS.values(), *PIPELINE, CHUNKS, *RECOMPUTE, SEQUENCE_PARALLEL))
"""What a trial gives itself, or must be able to take away."""
MOCK_DATA = "--mock-data --tokenizer-type NullTokenizer --train-iters 30 --lr 1e-4 --eval-iters 0"
DATA_OPTIONS = ("--data-path", "--data-args-path", "--train-data-path", "--per-split-data-args-path")


def megatron_flags(target: Target) -> list[str]:
    """Return the flags of the layout in Megatron's spelling: hyphens, and switches without a value."""
    return _flags({**megatron_options(target), "seq_length": target.job.seq_len, **_precision(target)})


def model_flags(target: Target) -> list[str]:
    """Return the flags of the model."""
    local: Options = {"transformer_impl": "local"} if target.job.framework.name == LOCAL else {}
    vocab: Options = {"vocab_size": target.model.vocab}
    return _flags({**model_options(target.model, target.job.seq_len), **vocab, **local})


def emit_megatron(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to Megatron too: data and schedule."""
    flags = megatron_flags(target)
    setup = ["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if needs_one_connection(target) else []
    setup += [_layout_variable(flags), *_data_variable()]
    launch = f"torchrun --nproc-per-node {target.gpus_per_node} --nnodes {target.num_nodes}"
    if target.num_nodes > 1:
        launch += ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}"'
    start = f'{launch} "${{PRETRAIN:-pretrain_gpt.py}}"'
    lines = [start, *model_flags(target), *_fixed(flags), f'${LAYOUT_VARIABLE} $DATA "$@"']
    return Emission(file_name="run_megatron.sh", text=_script(target, lines, setup), notes=_notes(target))


def _is_replaced(flag: str) -> bool:
    return flag.split()[0].replace("_", "-") in REPLACED


def _fixed(flags: Sequence[str]) -> list[str]:
    """Return what a trial leaves as it is."""
    return [flag for flag in flags if not _is_replaced(flag)]


def _layout_variable(flags: Sequence[str]) -> str:
    """Return the variable that a trial, or a user, empties to give a layout of its own.

    Of two values the last counts, but what a layout must not have could not be taken away from outside.
    """
    words = " ".join(word for flag in flags if _is_replaced(flag) for word in shlex.split(flag))
    return f'{LAYOUT_VARIABLE}=${{{LAYOUT_VARIABLE}-"{words}"}}'


def _data_variable() -> list[str]:
    """Return mock data and a schedule, for a script that is given none."""
    patterns = " | ".join(f'*" {option} "*' for option in DATA_OPTIONS)
    return [f'DATA=${{DATA-"{MOCK_DATA}"}}', f'case " $* " in {patterns}) DATA= ;; esac']


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


def _precision(target: Target) -> Options:
    precision = target.job.precision
    if precision == "fp32":
        return {}
    return {
        "fp16" if precision == "fp16" else "bf16": True,
        **low_precision(precision, is_sharded=target.layout.zero > 0),
    }


def _notes(target: Target) -> tuple[str, ...]:
    notes = ["it trains on mock data: give yours, the tokenizer and the schedule as arguments of the script"]
    notes.append("tune it by: zenithtune optimize -- bash run.sh")
    notes += model_notes(target.model)
    if needs_one_connection(target):
        notes.append("CUDA_DEVICE_MAX_CONNECTIONS=1 is set: Megatron asks for it with TP or CP before Blackwell")
    if target.num_nodes > 1:
        notes.append("start it on every node with MASTER_ADDR set")
    return tuple(notes)


SWIFT_NAMES = {"num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size"}
TORCH_TYPES = {"fp16": "float16", "fp32": "float32"}
"""What weights are, by precision; bfloat16 under everything below 16 bits too."""


def swift_options(target: Target) -> Options:
    """Return the options by ms-swift's names; what it would do by default and the layout does not is said."""
    options = {SWIFT_NAMES.get(name, name): value for name, value in megatron_options(target).items()}
    said: Options = {
        "sequence_parallel": target.layout.sequence_parallel,
        "use_distributed_optimizer": target.layout.zero > 0,
        "recompute_granularity": "none",
    }
    precision = target.job.precision
    narrow = low_precision(precision, is_sharded=target.layout.zero > 0)
    types: Options = {"torch_dtype": TORCH_TYPES.get(precision, "bfloat16"), **narrow}
    return {**said, **options, "max_length": target.job.seq_len, **types}


def swift_flags(target: Target) -> list[str]:
    """Return the flags in ms-swift's spelling: underscores, and a value for every switch."""
    options = swift_options(target).items()
    return [f"--{name} {shlex.quote(plain_value(value))}" for name, value in options]


def emit_ms_swift(target: Target) -> Emission:
    """Return a script; what follows its name on the command line goes to ms-swift too: model, data and schedule."""
    env = f"NPROC_PER_NODE={target.gpus_per_node} NNODES={target.num_nodes}"
    flags = swift_flags(target)
    lines = [f"{env} megatron sft", *_fixed(flags), f'${LAYOUT_VARIABLE} "$@"']
    text = _script(target, lines, [_layout_variable(flags)])
    notes = ["give the model, the data and the schedule as arguments of the script"]
    notes.append("tune it by: zenithtune optimize -- bash run.sh, with the same arguments behind it")
    notes += layout_notes(target, "--mtp_num_layers")
    if target.num_nodes > 1:
        notes.append("start it on every node with NODE_RANK, MASTER_ADDR and MASTER_PORT set")
    return Emission(file_name="run_ms_swift.sh", text=text, notes=tuple(notes))
