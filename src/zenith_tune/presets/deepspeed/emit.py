"""A configuration file for DeepSpeed."""

from __future__ import annotations

import json
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout_name import layout_name
from zenith_tune.presets.emission import Emission, Target

SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")
PRECISIONS = ("bf16", "fp16", "fp32")
CHECKPOINTING = "switch gradient checkpointing on in the model: the file does not"


def deepspeed_config(target: Target) -> dict[str, Any]:
    """Return the configuration: stage of sharding, micro-batch, accumulation and precision."""
    at, precision = target.layout, target.job.precision
    _refuse(target)
    return {
        "train_batch_size": at.global_batch,
        "train_micro_batch_size_per_gpu": at.micro_batch,
        "gradient_accumulation_steps": at.num_micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "zero_optimization": _zero(at.zero),
    }


def emit_deepspeed(target: Target) -> Emission:
    """Return ds_config.json."""
    at = target.layout
    steps = f"{at.dp} ranks x micro-batch {at.micro_batch} x {at.num_micro_batches} accumulation steps"
    notes = [f"batch {at.global_batch} = {steps}"]
    if at.recompute != "none":
        notes.append(CHECKPOINTING)
    text = json.dumps(deepspeed_config(target), indent=2) + "\n"
    return Emission(file_name="ds_config.json", text=text, notes=tuple(notes))


def _refuse(target: Target) -> None:
    cut = [name for name in SIZES if getattr(target.layout, name) > 1]
    name, precision = layout_name(target.layout), target.job.precision
    if cut:
        law = "a DeepSpeed configuration has data parallelism and ZeRO only"
        raise UsageError(f"{law}, but {name} has {' and '.join(cut)} above 1: plan with --emit deepspeed")
    if precision not in PRECISIONS:
        law = f"a DeepSpeed configuration has {', '.join(PRECISIONS)} only"
        raise UsageError(f"{law}, but the plan is for {precision}: give another --precision, or --emit megatron")


def _zero(stage: int) -> dict[str, Any]:
    options: dict[str, Any] = {"stage": stage}
    if stage:
        options |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
    if stage == 3:
        options["stage3_gather_16bit_weights_on_model_save"] = True
    return options
