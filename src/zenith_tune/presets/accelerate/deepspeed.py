"""Accelerate's DeepSpeed backend: the ZeRO stage and what is offloaded, in Accelerate's own keys or in a JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.accelerate.backend import Axes, Backend
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.accelerate.settings import FIELDS_OF_THE_JSON
from zenith_tune.strategies.zero_progressive.axes import AXES, CPU, OFF, STAGES
from zenith_tune.strategies.zero_progressive.ds_config import (
    ACCUMULATION,
    AUTO,
    BATCH,
    MICRO_BATCH,
    STAGE,
    DsConfig,
    Keys,
)
from zenith_tune.study.parameters import Value

OFFLOADS = ("offload_optimizer", "offload_param")
DEFAULT_STAGE = 2
"""Accelerate's own."""


class DeepSpeedBackend(Backend):
    """Run DeepSpeed."""

    default_names = ("stage", *OFFLOADS, "mbs")
    wrapper = "DeepSpeedEngine"
    framework = "deepspeed"

    @classmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        stage = job.ds_config.get(STAGE) if job.ds_config else job.settings.get("zero_stage")
        own = stage if type(stage) is int and stage in STAGES else DEFAULT_STAGE
        axes: Axes = {"stage": (own, *(each for each in STAGES if each != own))}
        for name in OFFLOADS:
            device = _own_device(job, name)
            axes[name] = (device, *(choice for choice in (OFF, CPU) if choice != device))
        return axes

    def explain(self, params: Mapping[str, Value]) -> str | None:
        stage = int(params["stage"])
        for name in OFFLOADS:
            if params[name] != OFF and not AXES[name].matters(stage):
                return f"{name} needs stage {AXES[name].first_stage} or higher, but the stage is {stage}"
        return super().explain(params)

    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        stage = int(params["stage"])
        own = self.job.settings
        third: dict[str, Any] = {
            key: own.get(key) if stage == 3 or own.get(key) is None else False
            for key in ("zero3_init_flag", "zero3_save_16bit_model")
        }
        if self.job.ds_config is not None:
            return {**third, **dict.fromkeys(FIELDS_OF_THE_JSON)}
        return {
            **third,
            "zero_stage": stage,
            "gradient_accumulation_steps": self.accumulation(params),
            "gradient_clipping": own.get("gradient_clipping"),
            "offload_optimizer_device": params["offload_optimizer"],
            "offload_param_device": params["offload_param"],
        }

    def ds_config(self, params: Mapping[str, Value]) -> DsConfig | None:
        """Return the trial's JSON, where the job has one."""
        own = self.job.ds_config
        if own is None:
            return None
        changes: dict[Keys, Any] = {STAGE: int(params["stage"]), ACCUMULATION: self.accumulation(params)}
        for name in OFFLOADS:
            section = own.get(AXES[name].keys)
            device = params[name]
            kept = section if isinstance(section, dict) else {"pin_memory": True}
            if device == CPU:
                kept = {key: value for key, value in kept.items() if key != "nvme_path"}
            changes[AXES[name].keys] = None if device == OFF else {**kept, "device": device}
        # Accelerate fills what is "auto" from the dataloader.
        for keys, size in {MICRO_BATCH: self.micro_batch(params), BATCH: self.global_batch}.items():
            if own.get(keys) not in (None, AUTO):
                changes[keys] = size
        return own.having(changes)

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return {
            "zero_stage": int(params["stage"]),
            "offload_optimizer_device": params["offload_optimizer"],
            "offload_param_device": params["offload_param"],
        }

    def layout(self, params: Mapping[str, Value]) -> Layout:
        return Layout(
            num_gpus=self.ranks(params),
            micro_batch=self.micro_batch(params),
            global_batch=self.global_batch,
            zero=int(params["stage"]),
        )


def _own_device(job: AccelerateJob, name: str) -> str:
    if job.ds_config is not None:
        section = job.ds_config.get(AXES[name].keys)
        device = section.get("device") if isinstance(section, dict) else None
    else:
        device = job.settings.word(f"{name}_device")
    return device if device in (CPU, "nvme") else OFF
