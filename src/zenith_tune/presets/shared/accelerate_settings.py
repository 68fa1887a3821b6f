"""An Accelerate configuration: a file that is read strictly and never changed, and copies with other values.

The names in an Accelerate configuration, as of 1.15.0: an unknown one inside a section is ignored there in silence.

A key of a section is the launcher's option of the same name, so that one table says both what may be written and where
an option of the command belongs.
"""

from __future__ import annotations

import copy
import difflib
import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.shared.training_files import read_yaml, yaml_text
from zenith_tune.study.files import read_regular
from zenith_tune.units import whole

Yaml = dict[str, Any]

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

BACKEND_SWITCHES = {
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "multi_gpu": "MULTI_GPU",
    "cpu": "NO",
}
"""Options that decide on the backend before any file does, and the type that a file has for each."""


def full_key(section: str, key: str) -> str:
    """Return a section's key with its prefix."""
    prefix = BARE.get(section, "")
    # As the launcher has it: "fsdp" without the underscore is prefix enough.
    return key if not prefix or key.startswith(prefix.rstrip("_")) else prefix + key


MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateSettings:
    """A configuration: keys at the top, and sections by their full names."""

    values: Yaml = field(default_factory=dict)
    source: str = "the Accelerate configuration"
    unread: tuple[str, ...] = ()
    """Keys inside sections that Accelerate ignores in silence."""

    def get(self, key: str) -> Any:
        """Return the value of a key, wherever it belongs, or None."""
        section = SECTION_OF.get(key)
        return (self.values if section is None else self.values.get(section, {})).get(key)

    def whole(self, key: str) -> int | None:
        """Return a whole number from 1, or None where there is none; anything else is an error."""
        value = self.get(key)
        if isinstance(value, str) and whole(value) is not None:
            value = int(value)
        if value is None or value == "auto" or (key == "num_processes" and value == -1):
            return None
        if type(value) is not int or not 1 <= value <= 2**31:
            raise UsageError(
                f"{self.source}: {key} must be a whole number from 1, but got {reprlib.repr(value)}: correct it"
            )
        return value

    def flag(self, key: str) -> bool:
        """Return whether something is switched on; false where nothing is said."""
        return is_on(self.get(key))

    def word(self, key: str) -> str | None:
        """Return a value as text in lower case, or None."""
        value = self.get(key)
        return None if value is None else str(value).lower()

    def having(self, changes: Mapping[str, Any]) -> AccelerateSettings:
        """Return a copy with these values, each under a name that Accelerate reads; None takes a value away."""
        values = copy.deepcopy(self.values)
        for key, value in changes.items():
            section = SECTION_OF.get(key)
            if section is None and key not in TOP:
                raise UnknownNameError("key of an Accelerate configuration", key, [*TOP, *SECTION_OF])
            place = values if section is None else values.setdefault(section, {})
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value
        return AccelerateSettings(values=values, source=self.source, unread=self.unread)

    @property
    def text(self) -> str:
        return yaml_text(_written(self.values))


def is_on(value: object) -> bool:
    """Return whether a value of YAML or of an option means yes."""
    return str(value).lower() in ("true", "1", "yes", "y", "on", "t")


def option_value(text: str) -> Any:
    """Return what a file would say for the value of an option."""
    try:
        value = read_yaml(text)
    except ValueError:
        return text
    return value if value is None or isinstance(value, bool | int | float) else text


def read_settings(path: Path) -> AccelerateSettings:
    """Read a configuration, YAML or JSON, or say in one line what is wrong with it."""
    source = str(path)
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        values = json.loads(text) if source.endswith(".json") else read_yaml(text)
    except FileNotFoundError:
        raise UsageError(f"the Accelerate configuration {source} does not exist: correct --config_file") from None
    except OSError as error:
        raise UsageError(f"the Accelerate configuration {source} cannot be read ({error.strerror}): fix it") from None
    except (ValueError, RecursionError) as error:
        problem = "must be a file as `accelerate config` writes it"
        raise UsageError(f"{source} {problem}, but is not ({' '.join(str(error).split())}): correct it") from None
    if not isinstance(values, dict):
        found = "is empty" if values is None else f"holds a {type(values).__name__}"
        raise UsageError(f"{source} must hold keys and values, but {found}: correct it")
    return _checked(values, source)


def _checked(values: Yaml, source: str) -> AccelerateSettings:
    """Refuse what Accelerate refuses, and list what it would ignore."""
    for key in map(str, values):
        if key not in TOP | OLD:
            close = difflib.get_close_matches(key, TOP, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ": take it out"
            raise UsageError(f"{source}: Accelerate knows no key {reprlib.repr(key)}{hint}")
    if values.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        problem = "the preset accelerate starts jobs on machines of your own"
        raise UsageError(
            f"{source}: {problem}, but compute_environment is {values['compute_environment']}", hint="change it"
        )
    named: Yaml = {key: value for key, value in values.items() if key not in OLD}
    unread: list[str] = []
    if is_on(values.get("fp16")) and named.get("mixed_precision") is None:
        named["mixed_precision"] = "fp16"
    if str(values.get("dynamo_backend", "NO")).upper() not in ("NO", "FALSE"):
        named["dynamo_config"] = {"dynamo_backend": values["dynamo_backend"]}
    for section, known in SECTIONS.items():
        content = named.pop(section, None)
        if content is None:
            continue
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise UsageError(f"{source}: {section} must hold keys and values, but is a {kind}: correct it")
        keys = {full_key(section, str(key)): value for key, value in content.items()}
        unread += [key for key in keys if key not in known]
        named[section] = {key: value for key, value in keys.items() if key in known}
    return AccelerateSettings(values=named, source=source, unread=tuple(unread))


def _written(values: Yaml) -> Yaml:
    """Return what is written of a configuration: nothing that is unset, and no section without a key."""
    found = {key: _written(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None and value not in ({}, [])}
