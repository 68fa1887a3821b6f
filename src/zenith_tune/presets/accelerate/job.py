"""What a command and its Accelerate configuration say of the job: backend, processes, batch, model and precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenith_tune.describe.deepspeed_config import ACCUMULATION, MICRO_BATCH, DsConfig, read_ds_config
from zenith_tune.errors import UsageError
from zenith_tune.presets.arguments import FrameworkArguments
from zenith_tune.presets.shared.accelerate_launch import (
    DEEPSPEED_TYPE,
    FSDP_TYPE,
    MEGATRON_LM,
    PLAIN_TYPE,
    PRESET,
    Launch,
    chosen_backend,
    merged_settings,
)
from zenith_tune.presets.shared.accelerate_settings import SECTION_OF, AccelerateSettings
from zenith_tune.presets.shared.launched_gpus import job_gpus
from zenith_tune.presets.shared.subject import MODEL_OPTIONS, SEQUENCE_OPTIONS, TRAINER_DEFAULT_BATCH
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import placeholder_names
from zenith_tune.units import whole

MBS_OPTIONS = ("--per_device_train_batch_size", "--micro_batch_size", "--batch_size")
"""What scripts call the batch size of their dataloader."""
GAS_OPTION = "--gradient_accumulation_steps"
ACCUMULATION_VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""What Accelerator() takes the steps of accumulation from, before its own argument."""
_NVME = "nvme"


@dataclass(frozen=True, kw_only=True)
class AccelerateArguments(FrameworkArguments):
    """What preset accelerate takes, with the script's options for its batch and recomputation."""

    gbs: int | None = None
    seq: int | None = None
    mbs_option: str | None = None
    gas_option: str | None = None
    recompute_option: str | None = None
    check: bool = True

    def __post_init__(self) -> None:
        for name in ("mbs_option", "gas_option", "recompute_option"):
            option = getattr(self, name)
            if option is not None and not option.startswith("--"):
                problem = f"{name} must be an option of the script, but got {option!r}"
                raise UsageError(problem, hint=f"write --{option}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateJob:
    """A job of Accelerate; the user's own file stays as it is."""

    settings: AccelerateSettings
    """What the file says, with the launcher's options in place of it where both speak."""
    backend: str
    num_gpus: int
    num_machines: int
    own_accumulation: int
    """Micro-batches of a step, as the job has them."""
    own_micro_batch: int | None
    """The dataloader's batch size; None where it is not known."""
    given_batch: int | None = None
    carriers: frozenset[str] = frozenset()
    """Which of mbs, gas and recompute the command has placeholders for."""
    mbs_option: str | None = None
    gas_option: str | None = None
    recompute_option: str | None = None
    ds_config: DsConfig | None = None
    """The JSON of DeepSpeed, where the job has one, or needs one for what Accelerate's own keys do not carry."""
    script_precision: str | None = None
    model: str | None = None
    seq_len: int | None = None
    live_precision: str | None = None
    """What the user's own command computed in, where its run showed it."""
    live_gpu: str | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The axes whose value the script itself gives, with the argument that does; gas is the accumulation."""

    @property
    def sets_accumulation_by_option(self) -> bool:
        """Whether the script takes the steps of accumulation from its command."""
        return self.gas_option is not None or "gas" in self.carriers

    @property
    def sets_accumulation_by_variable(self) -> bool:
        """Whether only a variable of Accelerate's can set the steps of accumulation."""
        return self.backend in (PLAIN_TYPE, FSDP_TYPE) and not self.sets_accumulation_by_option

    @property
    def gpus_per_machine(self) -> int:
        return max(self.num_gpus // self.num_machines, 1)

    @property
    def can_set_micro_batch(self) -> bool:
        """Whether a trial can change the dataloader's batch size."""
        return "mbs" in self.carriers or self.mbs_option is not None

    @property
    def precision(self) -> str:
        """bf16, fp16, fp8 or fp32."""
        found = self.live_precision or self.settings.word("mixed_precision") or self.script_precision
        return found if found in ("bf16", "fp16", "fp8") else "fp32"


def read_job(command: str, given: AccelerateArguments) -> AccelerateJob:
    """Read a command and its configuration; what is missing is an error of one line with a hint."""
    launch, line = Launch(command), ParsedCommand.of(command)
    _refuse_unknown(launch)
    settings = merged_settings(launch)
    backend, settings = chosen_backend(settings, launch)
    settings, ds_config = _deepspeed_json(settings) if backend == DEEPSPEED_TYPE else (settings, None)
    carriers = frozenset(placeholder_names(command, ("mbs", "gas", "recompute")))
    mbs_option = given.mbs_option or next((name for name in MBS_OPTIONS if line.has(name)), None)
    is_trainer = line.has("--output_dir") and mbs_option == MBS_OPTIONS[0]
    gas_option = given.gas_option or (GAS_OPTION if line.has(GAS_OPTION) or is_trainer else None)
    is_unknown = "num_processes" in launch.unknown_names
    started = None if is_unknown else settings.whole("num_processes")
    num_gpus = job_gpus(PRESET, given.n_gpus, started, asks_machine=not is_unknown, option="--num_processes")
    return AccelerateJob(
        settings=settings,
        backend=backend,
        num_gpus=num_gpus,
        num_machines=_num_machines(settings, num_gpus),
        own_accumulation=_accumulation(settings, ds_config, line, gas_option, backend),
        own_micro_batch=_micro_batch(line, ds_config, mbs_option, is_trainer),
        given_batch=given.gbs,
        carriers=carriers,
        mbs_option=mbs_option,
        gas_option=gas_option,
        recompute_option=given.recompute_option,
        ds_config=ds_config,
        script_precision=next((name for name in ("bf16", "fp16") if line.is_on(f"--{name}")), None),
        model=given.model or next((value for name in MODEL_OPTIONS if (value := line.get(name))), None),
        seq_len=given.seq or line.count(*SEQUENCE_OPTIONS),
    )


def _num_machines(settings: AccelerateSettings, num_gpus: int) -> int:
    found = settings.whole("num_machines") or 1
    if num_gpus % found:
        problem = f"{settings.source}: num_processes must be a multiple of num_machines, but got {num_gpus} and {found}"
        raise UsageError(f"{problem}: Accelerate would start {num_gpus // found} on each; correct one of them")
    return found


def _refuse_unknown(launch: Launch) -> None:
    """Refuse an option that would win over every trial's file with a value that only the shell knows."""
    for name in sorted(launch.unknown_names):
        if name == "config_file" or name in SECTION_OF:
            problem = f"{PRESET} writes --{name} for each trial, but its value is one that only the shell knows"
            raise UsageError(problem, hint="write it out")


def _deepspeed_json(settings: AccelerateSettings) -> tuple[AccelerateSettings, DsConfig | None]:
    """Return DeepSpeed's own JSON, where there is one, or where only that reaches DeepSpeed.

    The launcher exports the paths of an offload to NVMe nowhere, so that a job with one needs a JSON.
    """
    path = settings.get("deepspeed_config_file")
    if path is not None:
        return settings.having({"deepspeed_config_file": None}), read_ds_config(Path(str(path)))
    devices = {name: settings.word(f"{name}_device") for name in ("offload_optimizer", "offload_param")}
    if _NVME not in devices.values():
        return settings, None
    sections: dict[str, Any] = {}
    for name, device in devices.items():
        if device in ("cpu", _NVME):
            sections[name] = {"device": device, "pin_memory": True}
        if device == _NVME:
            sections[name]["nvme_path"] = settings.get(f"{name}_nvme_path")
    values = _json_of(settings, sections)
    precision = settings.word("mixed_precision")
    if precision in ("bf16", "fp16"):
        values[precision] = {"enabled": True}
    return settings, DsConfig(values=values, source=settings.source)


def accelerates_json(settings: AccelerateSettings) -> DsConfig:
    """Return the JSON that Accelerate itself makes of the keys in its file; the precision is left to its option."""
    devices = {name: settings.word(f"{name}_device") or "none" for name in ("offload_optimizer", "offload_param")}
    sections = {name: {"device": device} for name, device in devices.items()}
    return DsConfig(values=_json_of(settings, sections), source=settings.source)


def _json_of(settings: AccelerateSettings, offloads: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": settings.whole("gradient_accumulation_steps") or 1,
        "gradient_clipping": settings.get("gradient_clipping") or "auto",
        "zero_optimization": {
            "stage": settings.whole("zero_stage") or 2,
            **offloads,
            "stage3_gather_16bit_weights_on_model_save": settings.flag("zero3_save_16bit_model"),
        },
    }


def _accumulation(
    settings: AccelerateSettings, ds_config: DsConfig | None, line: ParsedCommand, gas_option: str | None, backend: str
) -> int:
    if backend == MEGATRON_LM:
        return settings.whole("megatron_lm_num_micro_batches") or 1
    if backend == DEEPSPEED_TYPE:
        found = ds_config.count(ACCUMULATION) if ds_config else settings.whole("gradient_accumulation_steps")
        if found is not None:
            return found
    variable = ({} if line.needs_shell else line.assignments()).get(ACCUMULATION_VARIABLE, "")
    return line.count(gas_option) or whole(variable) or 1


def _micro_batch(
    line: ParsedCommand, ds_config: DsConfig | None, mbs_option: str | None, is_trainer: bool
) -> int | None:
    found = line.count(mbs_option) or (ds_config.count(MICRO_BATCH) if ds_config else None)
    return TRAINER_DEFAULT_BATCH if found is None and is_trainer else found
