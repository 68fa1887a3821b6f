"""The names in an Accelerate configuration, as of 1.15.0: an unknown one inside a section is ignored there in silence.

A key of a section is the launcher's option of the same name, so that one table tells both what may be written and where
an option of the command belongs.
"""

from __future__ import annotations

from zenith_tune.errors import UnknownNameError

CHECKED_VERSION = "1.15.0"
"""The release whose launcher and classes the tests compare these names with."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _prefixed(prefix: str, names: str) -> frozenset[str]:
    return frozenset(f"{prefix}_{name}" for name in names.split())


MEGATRON, DEEPSPEED, FSDP = "megatron_lm_config", "deepspeed_config", "fsdp_config"
PARALLELISM = "parallelism_config"

TOP = _names(
    """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines gpu_ids
    main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config
    deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16 tpu_name tpu_zone
    tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config
    """
)
OLD = frozenset(("fp16", "dynamo_backend"))
"""What Accelerate still takes from files of its first releases."""

ONLY_AS_OPTIONS = frozenset(("same_network", "rdzv_backend", "enable_cpu_affinity", "downcast_bf16"))
"""A file may hold them, but the launcher takes them from its options alone: theirs are never unset."""


SECTIONS: dict[str, frozenset[str]] = {
    MEGATRON: _prefixed(
        "megatron_lm",
        """
        tp_degree pp_degree num_micro_batches sequence_parallelism recompute_activations use_distributed_optimizer
        gradient_clipping use_custom_fsdp no_load_optim eod_mask_loss no_save_optim optimizer_cpu_offload
        overlap_cpu_optimizer_d2h_h2d use_precision_aware_optimizer decoder_last_pipeline_num_layers
        recompute_granularity recompute_method recompute_num_layers attention_backend expert_model_parallel_size
        context_parallel_size attention_dropout hidden_dropout attention_softmax_in_fp32 expert_tensor_parallel_size
        calculate_per_token_loss use_rotary_position_embeddings
        """,
    ),
    DEEPSPEED: _names(
        """
        deepspeed_config_file zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
        offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model
        deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher
        deepspeed_moe_layer_cls_names
        """
    ),
    FSDP: _prefixed(
        "fsdp",
        """
        version offload_params min_num_params sharding_strategy reshard_after_forward auto_wrap_policy
        transformer_layer_cls_to_wrap backward_prefetch state_dict_type forward_prefetch use_orig_params
        cpu_ram_efficient_loading sync_module_states activation_checkpointing activation_checkpointing_offload
        """,
    )
    # Exported by the launcher although it has no option of that name.
    | {"fsdp_ignored_modules"},
    PARALLELISM: _prefixed(
        "parallelism_config",
        """
        dp_replicate_size dp_shard_size tp_size cp_size cp_backend cp_comm_strategy sp_size sp_backend sp_seq_length
        sp_seq_length_is_variable sp_attn_implementation
        """,
    ),
    "fp8_config": _prefixed(
        "fp8",
        """
        backend use_autocast_during_eval margin interval format amax_history_len amax_compute_algo
        override_linear_precision opt_level enable_fsdp_float8_all_gather pad_inner_dim
        """,
    ),
    "dynamo_config": _prefixed("dynamo", "backend mode use_fullgraph use_dynamic use_regional_compilation"),
    "mpirun_config": frozenset(("mpirun_hostfile",)),
}
"""What each section may hold, with the prefix that a file may leave out in three of them."""
BARE = {FSDP: "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
"""Sections whose keys may be written without their prefix, as the launcher puts it before them."""
SECTION_OF = {key: section for section, keys in SECTIONS.items() for key in keys}

FIELDS_OF_THE_JSON = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
    *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
    "mixed_precision",
)
"""What Accelerate refuses in its own file where DeepSpeed has a JSON."""

SWITCHES = _names(
    """
    quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
    use_deepspeed use_fsdp use_parallelism_config use_megatron_lm same_network module no_python tpu_cluster
    no_tpu_cluster tpu_use_sudo downcast_bf16 fp8_use_autocast_during_eval debug q m h help
    """
)
"""Options of the launcher that take no value."""
BACKEND_SWITCHES = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
    "cpu": "NO",
}
"""Options that decide on the backend before any file does, and the type that a file has for each."""


def full_key(section: str, key: str) -> str:
    """Return a section's key with its prefix.

    >>> full_key("fsdp_config", "version"), full_key("deepspeed_config", "zero_stage")
    ('fsdp_version', 'zero_stage')
    """
    prefix = BARE.get(section, "")
    # As the launcher has it: "fsdp" without the underscore is prefix enough.
    return key if not prefix or key.startswith(prefix.rstrip("_")) else prefix + key


def checked(section: str, key: str) -> str:
    """Return a key that Accelerate reads, or raise: in a file of ours there is no other."""
    if key not in SECTIONS[section]:
        raise UnknownNameError(f"key of Accelerate's {section}", key, SECTIONS[section])
    return key
