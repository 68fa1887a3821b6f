"""What is searched of a Trainer, and the arguments that a point stands for.

Its ranks share the state of a model not at all (DDP), by FSDP version 2, or by DeepSpeed's ZeRO.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.evaluators.hooked_run import PLAIN
from zenith_tune.presets.shared.hooked_job import MBS, RECOMPUTE, HookedSpace, Sharding
from zenith_tune.presets.trainer.command import ACCUMULATION, CHECKPOINTING, MICRO_BATCH, PACKING, STEPS_PER_GENERATION
from zenith_tune.presets.trainer.job import TrainerJob
from zenith_tune.presets.trainer.levers import LEVERS
from zenith_tune.study.parameters import Params, Value

SHARDING = "sharding"
FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config", "deepspeed"
FIRST_FSDP2 = (5, 0)
"""The release of transformers from which `fsdp` is a switch that means version 2."""
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)
"""What DeepSpeed takes from the Trainer."""


def _zero(stage: int) -> Sharding:
    precision = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    config = {"zero_optimization": {"stage": stage}, **precision, **AUTO}
    return Sharding(
        name=f"zero{stage}",
        zero=stage,
        wrapper="DeepSpeedEngine",
        arguments={DEEPSPEED: json.dumps(config)},
        settings={"zero_optimization.stage": stage},
    )


def _fsdp(name: str, zero: int, arguments: Mapping[str, Value]) -> Sharding:
    return Sharding(
        name=name,
        zero=zero,
        wrapper="FSDPModule",
        arguments={FSDP: True, **arguments},
        settings={"fsdp_version": 2, "reshard_after_forward": zero == 3},
    )


SHARDINGS = {
    each.name: each
    for each in (
        Sharding(name="none", zero=0),
        _fsdp("fsdp2", 3, {}),
        _fsdp("fsdp2_no_reshard", 2, {FSDP_CONFIG: json.dumps({"reshard_after_forward": False})}),
        _zero(1),
        _zero(2),
        _zero(3),
    )
}


def _takes(job: TrainerJob, sharding: Sharding) -> bool:
    """Return whether a job that ran as plain data parallelism can be started so."""
    trainer = job.trainer
    if trainer is None or (job.dialect is not None and not sharding.arguments.keys() <= job.dialect.keys.keys()):
        return False
    if DEEPSPEED in sharding.arguments:
        return DEEPSPEED in trainer.packages
    # Without a GPU Accelerate leaves the option aside.
    return FSDP not in sharding.arguments or (trainer.compute > 0 and trainer.release >= FIRST_FSDP2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpace(HookedSpace[TrainerJob]):
    """The axes of a job, and the arguments that a point stands for."""

    sharding_axis = SHARDING
    shardings = SHARDINGS

    @classmethod
    def choices(cls, job: TrainerJob) -> Mapping[str, tuple[Value, ...]]:
        """Return gradient checkpointing, and how ranks may share the model's state."""
        is_on = job.is_checkpointing
        recompute = (is_on,) if job.checkpoints_itself else (is_on, not is_on)
        can_shard = job.num_processes > 1 and job.wrapper == PLAIN
        names = tuple(name for name, each in SHARDINGS.items() if _takes(job, each)) if can_shard else ()
        return {RECOMPUTE: recompute, SHARDING: names}

    @classmethod
    def on_request(cls, job: TrainerJob) -> tuple[str, ...]:
        """Return the sharding without a GPU, because nothing is gained by it."""
        return () if job.compute else (SHARDING,)

    def smaller(self, params: Mapping[str, Value]) -> Params | None:
        """Return the next point that takes less memory: a smaller micro-batch, or else gradient checkpointing."""
        sizes = [int(size) for size in self.axes[MBS] if int(size) < int(params[MBS])]
        if sizes:
            return {**params, MBS: max(sizes)}
        can_turn = not params[RECOMPUTE] and True in self.axes[RECOMPUTE]
        return {**params, RECOMPUTE: True} if can_turn else None

    def batch(self, params: Mapping[str, Value]) -> tuple[int, int]:
        """Return the micro-batch and the passes of an update; of packed rows as many as hold the same tokens."""
        size, num_passes = super(TrainerSpace, self).batch(params)
        per_row = self.job.samples_of_row if params.get(PACKING) else None
        if per_row is None:
            return size, num_passes
        rows = max(round(size / per_row), 1)
        return rows, max(round(size * num_passes / per_row / rows), 1)

    def arguments(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the Trainer of a point must have been made with."""
        size, num_passes = self.batch(params)
        found: dict[str, Value] = {MICRO_BATCH: size, ACCUMULATION: num_passes}
        if self.job.steps_per_generation:
            found[STEPS_PER_GENERATION] = self.job.num_generated // size
        if not self.job.checkpoints_itself:
            found[CHECKPOINTING] = bool(params[RECOMPUTE])
        return {**found, **self.sharding(params).arguments, **self.lever_values(LEVERS, params)}

    def written(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return the arguments that are written for a point: those that the command has, and what is not so anyway."""
        job = self.job
        # Before a run the batch may be another than the text says.
        unsure = () if job.trainer else (MICRO_BATCH, ACCUMULATION)
        return {
            name: value
            for name, value in self.arguments(params).items()
            if name in job.options or name in unsure or job.arguments.get(name) != value
        }
