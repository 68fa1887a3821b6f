"""Commands and configurations of jobs that use Accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from zenith_tune.presets.accelerate.preset import AcceleratePreset
from zenith_tune.presets.shared.accelerate_launch import FILE_NAME
from zenith_tune.study.parameters import Params, Value

TOP = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {kind}
downcast_bf16: 'no'
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29501
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""
MEGATRON = """\
megatron_lm_config:
  megatron_lm_gradient_clipping: 0.5
  megatron_lm_num_micro_batches: 4
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: false
  megatron_lm_tp_degree: 4
  megatron_lm_use_distributed_optimizer: false
"""
DEEPSPEED = """\
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
"""
FSDP = """\
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_version: 2
"""
SECTIONS = {"MEGATRON_LM": MEGATRON, "DEEPSPEED": DEEPSPEED, "FSDP": FSDP, "MULTI_GPU": ""}


def write(folder: Path, kind: str, section: str | None = None) -> Path:
    path = folder / "own.yaml"
    path.write_text(TOP.format(kind=kind) + (SECTIONS[kind] if section is None else section))
    return path


def command(path: Path, more: str = "--batch_size 2", options: str = "") -> str:
    launch = f"OMP_NUM_THREADS=1 accelerate launch{' ' if options else ''}{options} --config_file {path}"
    return f"{launch} train.py --lr 0.1 'a b'{' ' if more else ''}{more}"


def bound(text: str, **args: Any) -> AcceleratePreset:
    preset = AcceleratePreset(**args)
    preset.bind(text)
    return preset


def point(preset: AcceleratePreset, **values: Value) -> Params:
    """Return a point with these values, and the first choice of the rest."""
    return {name: values.get(name, parameter.grid(1)[0]) for name, parameter in preset.get_search_space().items()}


def config_of(preset: AcceleratePreset, **values: Value) -> dict[str, Any]:
    """Return a trial's own configuration."""
    found: dict[str, Any] = yaml.safe_load(preset.files(point(preset, **values))[FILE_NAME])
    return found


def choices(preset: AcceleratePreset) -> dict[str, list[Value]]:
    return {name: parameter.grid(9) for name, parameter in preset.get_search_space().items()}
