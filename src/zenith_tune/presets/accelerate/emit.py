"""A configuration file for Accelerate: its Megatron-LM, DeepSpeed or FSDP backend, or plain data parallelism.

Accelerate ignores an unknown key of these parts in silence, so that every key here is one that its plugins read.
"""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.describe.deepspeed_config import OFF
from zenith_tune.errors import UsageError
from zenith_tune.hooks.injection import hook_files
from zenith_tune.layouts.layout import layout_name
from zenith_tune.layouts.pipeline import is_even
from zenith_tune.presets.accelerate.job import ACCUMULATION_VARIABLE
from zenith_tune.presets.accelerate.space import OFFLOADS, Backend, DeepSpeedBackend
from zenith_tune.presets.emission import CHECKPOINTING_NOTE, DATA_PARALLEL_ONLY, Emission, Target
from zenith_tune.presets.levers import lever_label
from zenith_tune.presets.shared.accelerate_launch import Launch
from zenith_tune.presets.shared.accelerate_settings import AccelerateSettings, Yaml
from zenith_tune.presets.shared.training_files import yaml_text
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.study.parameters import Value

KNOWN_MODELS = ("bert", "gpt2", "t5", "llama", "glm4")
"""What the models are called that its Megatron-LM plugin can build."""


def accelerate_config(target: Target) -> Yaml:
    """Return the settings of the backend that runs the layout's framework."""
    framework = target.job.framework.name
    if framework not in DATA_PARALLEL_ONLY:
        return {**_common(target, "MEGATRON_LM"), "megatron_lm_config": _megatron(target)}
    problem = f"Accelerate's {framework} backend is planned with data parallelism only"
    target.refuse_sizes(problem, hint="fix them to 1")
    if framework == "deepspeed":
        return {**_common(target, "DEEPSPEED"), "deepspeed_config": _deepspeed(target)}
    if _is_sharded(target):
        return {**_common(target, "FSDP"), "fsdp_config": _fsdp(target)}
    return _common(target, "MULTI_GPU" if target.layout.num_gpus > 1 else "NO")


def emit_accelerate(target: Target) -> Emission:
    """Return the file for `accelerate launch --config_file`; what it has no key for is said in its comments too."""
    batch = _batch_note(target)
    notes = [batch, *_backend_notes(target)]
    if target.num_nodes > 1:
        notes.append("set machine_rank and main_process_ip on every node")
    text = f"# {target.title}\n# {batch}\n{yaml_text(accelerate_config(target))}"
    return Emission(file_name="accelerate.yaml", text=text, notes=tuple(notes))


def _batch_note(target: Target) -> str:
    layout = target.layout
    size = f"the dataloader's batch size must be {layout.micro_batch}"
    if target.job.framework.name not in ("fsdp", "hf-accelerate"):
        return f"{size}; the file says the {layout.num_micro_batches} accumulation steps of batch {layout.global_batch}"
    steps = f"Accelerator(gradient_accumulation_steps={layout.num_micro_batches})"
    product = f"{layout.dp} x {layout.micro_batch} x {layout.num_micro_batches} = batch {layout.global_batch}"
    return f"{size}, with {steps}: {product}"


def _backend_notes(target: Target) -> list[str]:
    notes = []
    if target.job.framework.name not in DATA_PARALLEL_ONLY:
        return _model_notes(target)
    if target.job.framework.name == "fsdp" and not _is_sharded(target):
        notes.append("nothing is sharded: this is plain data parallelism, not FSDP")
    if target.layout.recompute != "none" and not _is_sharded(target):
        notes.append(CHECKPOINTING_NOTE)
    if target.job.precision == "fp8":
        notes.append("fp8 needs Transformer Engine or torchao: choose one in fp8_config")
    return notes


def _model_notes(target: Target) -> list[str]:
    name, has_experts = target.model.name.lower(), target.model.num_experts > 0
    if any(known in name for known in KNOWN_MODELS) and (not has_experts or "glm4" in name):
        return []
    known = "megatron-bert, gpt2, t5, llama and glm4_moe"
    return [f"Accelerate's Megatron-LM plugin builds {known} only: {target.model.name} needs a provider of yours"]


def _is_sharded(target: Target) -> bool:
    return target.job.framework.name == "fsdp" and target.layout.zero > 0


def _common(target: Target, kind: str) -> Yaml:
    settings: Yaml = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": _precision(target, kind),
        "num_machines": target.num_nodes,
        "num_processes": target.layout.num_gpus,
        "machine_rank": 0,
        "use_cpu": False,
    }
    if target.num_nodes > 1:
        settings |= {"main_process_ip": "127.0.0.1", "main_process_port": 29500, "same_network": True}
    return settings


def _megatron(target: Target) -> Yaml:
    layout = target.layout
    _refuse_what_accelerate_lacks(target)
    _, _, method = layout.recompute.partition("/")
    return {
        "megatron_lm_tp_degree": layout.tp,
        "megatron_lm_pp_degree": layout.pp,
        # Left out, Accelerate takes 2.
        "megatron_lm_context_parallel_size": layout.cp,
        "megatron_lm_num_micro_batches": layout.num_micro_batches,
        "megatron_lm_sequence_parallelism": layout.sequence_parallel,
        "megatron_lm_use_distributed_optimizer": layout.zero > 0,
        "megatron_lm_gradient_clipping": 1.0,
        # Left out, Accelerate takes full over all layers; blocks of none are how it is asked to recompute nothing.
        "megatron_lm_recompute_granularity": "full",
        "megatron_lm_recompute_method": method or "block",
        "megatron_lm_recompute_num_layers": layout.recompute_layers,
        "megatron_lm_expert_model_parallel_size": layout.ep,
        "megatron_lm_expert_tensor_parallel_size": layout.etp,
    }


def _refuse_what_accelerate_lacks(target: Target) -> None:
    layout = target.layout
    lacks = {
        "virtual stages": layout.vp > 1,
        "context parallelism, whose ranks it counts into the batch": layout.cp > 1,
        "an uneven pipeline": not is_even(target.model.num_layers, pp=layout.pp, vp=layout.vp),
        "selective recomputation, to which its plugin adds a number of layers that Megatron refuses": (
            layout.recompute == "selective"
        ),
        "gradients or weights that are sharded": layout.zero > 1,
    }
    for what, lacking in lacks.items():
        if lacking:
            problem = f"Accelerate's file has no key for {what}"
            raise UsageError(f"{problem}, but {layout_name(layout)} needs it: plan with --emit accelerate")


def _deepspeed(target: Target) -> Yaml:
    layout = target.layout
    return {
        "zero_stage": layout.zero,
        "gradient_accumulation_steps": layout.num_micro_batches,
        "gradient_clipping": 1.0,
        "zero3_init_flag": layout.zero == 3,
        "zero3_save_16bit_model": layout.zero == 3,
    }


def _fsdp(target: Target) -> Yaml:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": target.layout.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_activation_checkpointing": target.layout.recompute != "none",
    }


def _precision(target: Target, kind: str) -> str:
    precision = target.job.precision
    if precision in ("bf16", "fp16"):
        return precision
    if precision == "fp32":
        return "no"
    # The Megatron-LM plugin passes on bf16 and fp16 alone, and would run anything else in fp32.
    if precision != "fp8" or kind == "MEGATRON_LM":
        problem = f"Accelerate's file has no key for {precision} with {kind}"
        raise UsageError(f"{problem}: plan with --precision bf16, or --emit megatron")
    return precision


DS_FILE = "ds_config.json"
DS_PATH = f"{{trial_folder}}/{DS_FILE}"
_SHORT = {"tp": "TP", "pp": "PP", "cp": "CP", "ep": "EP", "stage": "Z", "mbs": "mbs", "zero": "zero"}


HOOK_FILES = hook_files({"accelerate": {}}, "model")


def settings_of(backend: Backend, params: Mapping[str, Value]) -> AccelerateSettings:
    """Return the trial's configuration: all that the job's own says, with a point's values."""
    job = backend.job
    common = {
        "compute_environment": "LOCAL_MACHINE",
        "num_processes": job.num_gpus,
        "num_machines": job.num_machines,
        "machine_rank": job.settings.get("machine_rank") or 0,
    }
    return job.settings.having({**common, **backend.changes(params)})


def ds_file(backend: Backend, params: Mapping[str, Value]) -> dict[str, str]:
    """Return DeepSpeed's JSON as a file, where the job has one."""
    if not isinstance(backend, DeepSpeedBackend) or not backend.has_json(params):
        return {}
    return {DS_FILE: backend.config_at(params).text}


def trial_command(backend: Backend, command: str, params: Mapping[str, Value]) -> str:
    """Return the command with the trial's file, and with the script's options for what the file cannot say."""
    job, gas = backend.job, backend.accumulation(params)
    values: dict[str, Value] = {**params, "gas": gas, "gbs": backend.global_batch}
    options = {"mbs": job.mbs_option, "gas": job.gas_option, "recompute": job.recompute_option}
    named = {name: option for name, option in options.items() if option}
    text = fill_or_set(command, named, values, keeps_names=True)
    needs_variable = job.sets_accumulation_by_variable and "mbs" in params
    variables = {ACCUMULATION_VARIABLE: str(gas)} if needs_variable else {}
    return Launch(text).written(_json_options(backend, params), variables)


def point_label(backend: Backend, params: Mapping[str, Value]) -> str:
    """Return a point in a few words; what has no choice goes without saying."""
    words = []
    for name, choices in backend.axes.items():
        value = params[name]
        if len(choices) == 1 or (value == OFF and name in OFFLOADS):
            continue
        if isinstance(value, bool):
            words.append(name if value else f"no-{name}")
        else:
            words.append(f"{_SHORT[name]}{value}" if name in _SHORT else f"{name}={value}")
    words += [lever_label(name, value) for name, value in backend.levers_of(params).items()]
    return " ".join(words)


def _json_options(backend: Backend, params: Mapping[str, Value]) -> dict[str, str]:
    """Return the launcher's options that only the command can give: a path in the trial's folder."""
    if not isinstance(backend, DeepSpeedBackend) or not backend.has_json(params):
        return {}
    precision = backend.job.settings.word("mixed_precision")
    # In the file, next to a JSON, Accelerate would refuse it.
    return {"deepspeed_config_file": DS_PATH, **({"mixed_precision": precision} if precision else {})}
