"""The command behind a Megatron-LM log: the log dumps every argument, from which the options are written anew.

A dump is a table of `  hidden_size ..................................... 2048` between two lines of dashes; a launcher
may put a rank before each of its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from zenith_tune.shell import CommandLine

COUNTS_AND_WORDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "seq_length"),
    *("max_position_embeddings", "normalization", "position_embedding_type", "softmax_type", "vocab_size"),
    *("make_vocab_size_divisible_by", "tokenizer_type", "tokenizer_model", "transformer_impl", "mtp_num_layers"),
    *("micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_layer_freq", "moe_token_dispatcher_type", "q_lora_rank", "kv_lora_rank", "qk_head_dim"),
    *("qk_pos_emb_head_dim", "v_head_dim", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("fp8_recipe", "hybrid_layer_pattern", "hybrid_override_pattern", "heterogeneous_layers_config_path"),
    *("experimental_attention_variant", "linear_attention_freq"),
)
SWITCHES = (
    *("swiglu", "quick_geglu", "group_query_attention", "bf16", "fp16", "sequence_parallel"),
    *("use_distributed_optimizer", "untie_embeddings_and_output_weights", "multi_latent_attention", "add_qkv_bias"),
    *("qk_layernorm", "use_rotary_position_embeddings", "no_persist_layer_norm", "moe_shared_expert_gate"),
    *("use_megatron_fsdp", "use_torch_fsdp2", "use_custom_fsdp", "account_for_embedding_in_pipeline_split"),
    "account_for_loss_in_pipeline_split",
)
OF_GROUPS = ("num_query_groups",)
"""Dumped with Megatron's default where there are no groups."""
OFF_SWITCHES = {"add_bias_linear": "--disable-bias-linear", "add_position_embedding": "--no-position-embedding"}
RENAMED = {"virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank", "fp8": "--fp8-format"}
BACKEND = "attention_backend"
MODULES = "recompute_modules"
START, END = "--- arguments ---", "--- end of arguments ---"
MAX_DUMP = 400_000
"""Characters; Megatron-LM 0.20 dumps some fifty thousand."""
_LINE = re.compile(r"^[^\n]{0,40}?\b([a-z]\w{0,79}) (?:\.{1,80} | )(\S[^\n]{0,400})$", re.MULTILINE)
_VOCAB = re.compile(r"> padded vocab \(size: (\d{1,9})\) with")


def dumped_arguments(log: str) -> dict[str, str]:
    """Return the arguments that a log dumps, by name; nothing where it dumps none.

    >>> rows = "  num_layers ...... 16\\n  tokenizer_that_has_a_long_name  True\\n"
    >>> dumped_arguments(f"{'-' * 24} arguments {'-' * 24}\\n{rows}{'-' * 20} end of arguments {'-' * 21}")
    {'num_layers': '16', 'tokenizer_that_has_a_long_name': 'True'}
    """
    end = log.rfind(END)
    start = log.rfind(START, max(end - MAX_DUMP, 0), end) if end >= 0 else -1
    if start < 0:
        return {}
    found = {name: value.strip() for name, value in _LINE.findall(log[start:end].replace("\r", ""))}
    if (vocab := _VOCAB.search(log)) is not None and found.get("vocab_size", "None") == "None":
        found["vocab_size"] = vocab[1]
    return {name: value for name, value in found.items() if value != "None"}


def dumped_command(arguments: Mapping[str, str]) -> str:
    """Return a command that stands for the run that dumped these arguments."""
    return CommandLine.from_argv(["python", "pretrain_gpt.py", *_words(arguments)]).text


def recompute_modules(arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Return what selective recomputation recomputes, where the dump says it.

    >>> recompute_modules({"recompute_modules": "['core_attn', 'mlp']"})
    ('core_attn', 'mlp')
    """
    return tuple(re.findall(r"[a-z_]+", arguments.get(MODULES, "")))


def _words(arguments: Mapping[str, str]) -> Iterator[str]:
    names = (*COUNTS_AND_WORDS, *(OF_GROUPS if arguments.get("group_query_attention") == "True" else ()))
    options = {name: f"--{name.replace('_', '-')}" for name in names} | RENAMED
    for name, option in options.items():
        if name in arguments:
            yield from (option, arguments[name])
    # A word of an enumeration, AttnBackend.flash.
    if BACKEND in arguments:
        yield from ("--attention-backend", arguments[BACKEND].rpartition(".")[2])
    yield from (f"--{name.replace('_', '-')}" for name in SWITCHES if arguments.get(name) == "True")
    yield from (option for name, option in OFF_SWITCHES.items() if arguments.get(name) == "False")
