"""A configuration file for DeepSpeed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from zenith_tune.describe.deepspeed_config import (
    ACCUMULATION,
    AUTOTUNING,
    BATCH,
    CHECKPOINTING,
    MICRO_BATCH,
    STAGE,
    STAGES,
    DsConfig,
    Keys,
)
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import SECONDS
from zenith_tune.presets.deepspeed.job import DeepSpeedJob
from zenith_tune.presets.deepspeed.space import ALL, DeepSpeedSpace, listed_axes
from zenith_tune.presets.emission import CHECKPOINTING_NOTE, Emission, Target
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Trial

PRECISIONS = ("bf16", "fp16", "fp32")


def deepspeed_config(target: Target) -> dict[str, Any]:
    """Return the configuration: stage of sharding, micro-batch, accumulation and precision."""
    layout, precision = target.layout, target.job.precision
    target.refuse_sizes(
        "a DeepSpeed configuration has data parallelism and ZeRO only", hint="plan with --emit deepspeed"
    )
    if precision not in PRECISIONS:
        problem = f"a DeepSpeed configuration has {', '.join(PRECISIONS)} only, but the plan is for {precision}"
        raise UsageError(problem, hint="give another --precision, or --emit megatron")
    return {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro_batches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16"},
        "zero_optimization": _zero(layout.zero),
    }


def emit_deepspeed(target: Target) -> Emission:
    """Return ds_config.json."""
    layout = target.layout
    steps = f"{layout.dp} ranks x micro-batch {layout.micro_batch} x {layout.num_micro_batches} accumulation steps"
    notes = [f"batch {layout.global_batch} = {steps}"]
    if layout.recompute != "none":
        notes.append(CHECKPOINTING_NOTE)
    text = json.dumps(deepspeed_config(target), indent=2) + "\n"
    return Emission(file_name="ds_config.json", text=text, notes=tuple(notes))


def _zero(stage: int) -> dict[str, Any]:
    options: dict[str, Any] = {"stage": stage}
    if stage:
        options |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
    if stage == 3:
        options["stage3_gather_16bit_weights_on_model_save"] = True
    return options


MEASURING: Mapping[Keys, object] = {
    ("steps_per_print",): 1,
    ("wall_clock_breakdown",): True,
    # Since 0.19 the speed of a step is printed at this level alone.
    ("log_level",): "info",
}
"""What makes DeepSpeed print the time of each step; under Accelerate, only the second has an effect."""

_PLACEHOLDERS = {MICRO_BATCH: "mbs", ACCUMULATION: "gas", BATCH: "gbs"}


def batch_of(job: DeepSpeedJob, params: Mapping[str, Value]) -> dict[Keys, int]:
    """Return the parts of the batch: accumulation follows, so that their product stays the global batch."""
    mbs = int(params["mbs"])
    return {BATCH: job.global_batch, MICRO_BATCH: mbs, ACCUMULATION: max(job.rank_batch // mbs, 1)}


def best_config(space: DeepSpeedSpace, params: Mapping[str, Value]) -> DsConfig:
    """Return the user's configuration with a point's values: complete, and without what only tuners read."""
    return space.job.config.having({**space.settings(params), **_written(space.job, params), (AUTOTUNING,): None})


def _written(job: DeepSpeedJob, params: Mapping[str, Value]) -> dict[Keys, int]:
    """Return the parts of the batch without what is "auto" for the Trainer to fill."""
    parts = batch_of(job, params).items()
    return {keys: size for keys, size in parts if not (job.is_trainer and job.config.is_auto(keys))}


def trial_config(space: DeepSpeedSpace, params: Mapping[str, Value]) -> DsConfig:
    """Return the same, printing the time of each step."""
    return best_config(space, params).having(MEASURING)


def baseline_config(space: DeepSpeedSpace) -> DsConfig:
    """Return the user's own configuration, printing the time of each step; of a list, the first value counts."""
    config = space.job.config
    stage, sizes = config.get(STAGE), config.get(MICRO_BATCH)
    changes: dict[Keys, object] = {axis.keys: axis.choices[0] for axis in listed_axes(config).values()}
    if isinstance(stage, list) or stage == ALL:
        changes[STAGE] = space.stages[0]
    if isinstance(sizes, list):
        changes |= batch_of(space.job, {"mbs": sizes[0]})
    elif space.job.is_limited:
        changes |= _written(space.job, {"mbs": space.job.own_micro_batch or 1})
    return config.having({**changes, **MEASURING, (AUTOTUNING,): None})


def script_options(job: DeepSpeedJob) -> dict[str, str]:
    """Return the script's own options that must agree with the configuration, by their placeholders."""
    batch = {_PLACEHOLDERS[keys]: option for keys, option in job.batch_options.items()}
    return {**batch, CHECKPOINTING: "--gradient_checkpointing"}


def script_values(job: DeepSpeedJob, params: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the placeholders of a command, or else those options, are set to."""
    values = {**params, **{_PLACEHOLDERS[keys]: size for keys, size in batch_of(job, params).items()}}
    if CHECKPOINTING in params:
        values[CHECKPOINTING] = str(bool(params[CHECKPOINTING]))  # as the Trainer's parser reads it
    return values


def summary(job: DeepSpeedJob, trials: Iterable[Trial]) -> str:
    """Return the summary that DeepSpeed's own tuner leaves: its table of stages, with its names of experiments."""
    ran = [trial for trial in trials if not trial.is_rerun]
    spaces = {f"z{stage}": [trial for trial in ran if trial.params["stage"] == stage] for stage in STAGES}
    lines = ["| tuning_space | num_experiments | best_metric_val | best_exp_name |", "|:--|--:|--:|:--|"]
    for name, members in {**spaces, "global": ran}.items():
        measured = [trial for trial in members if trial.ok and trial.value is not None]
        if measured:
            best = min(measured, key=lambda trial: (1 if trial.unit == SECONDS else -1) * (trial.value or 0.0))
            lines.append(f"| {name} | {len(members)} | {best.value:g} | {_experiment(job, best.params)} |")
    took = timedelta(seconds=round(sum(trial.duration_s or 0.0 for trial in ran)))
    return "\n".join([*lines, "", f"Tuning completed in {took}. Total number of experiments: {len(ran)}.", ""])


def _experiment(job: DeepSpeedJob, params: Mapping[str, Value]) -> str:
    parts = batch_of(job, params)
    return f"z{params['stage']}_gas{parts[ACCUMULATION]}_tmbspg{parts[MICRO_BATCH]}"
