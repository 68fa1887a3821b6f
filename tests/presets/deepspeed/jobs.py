"""Commands and configurations of jobs that train with DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset
from zenith_tune.study.parameters import Params, Value

PLAIN: dict[str, Any] = {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
TRAINER: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}


def write(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "ds.json"
    path.write_text(json.dumps(values))
    return path


def command(path: Path, more: str = "", launcher: str = "deepspeed --num_gpus 4") -> str:
    return f"{launcher} train.py --deepspeed --deepspeed_config {path}{' ' if more else ''}{more}"


def trainer_command(path: Path, more: str = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4") -> str:
    return f"deepspeed --num_gpus 4 run_clm.py --deepspeed {path} --output_dir out {more}"


def bound(text: str, **args: Any) -> DeepSpeedPreset:
    preset = DeepSpeedPreset(**args)
    preset.bind(text)
    return preset


def point(preset: DeepSpeedPreset, **values: Value) -> Params:
    """Return a point with these values, and the first choice of the rest."""
    return {name: values.get(name, parameter.grid(1)[0]) for name, parameter in preset.get_search_space().items()}


def config_of(preset: DeepSpeedPreset, **values: Value) -> dict[str, Any]:
    """Return a trial's own configuration."""
    [text] = preset.files(point(preset, **values)).values()
    config: dict[str, Any] = json.loads(text)
    return config
