"""What is searched of a Trainer, and the arguments that a point stands for.

Its ranks share the state of a model not at all (DDP), by FSDP version 2, or by DeepSpeed's ZeRO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, JobFacts
from zenith_tune.presets.arguments import DEFAULT, chosen_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.trainer.command import ACCUMULATION, CHECKPOINTING, MICRO_BATCH, PACKING
from zenith_tune.presets.trainer.job import TrainerJob
from zenith_tune.presets.trainer.levers import lever_arguments
from zenith_tune.study.parameters import Params, Value

SHARDING = "sharding"
DDP = "DistributedDataParallel"
FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config", "deepspeed"
FIRST_FSDP2 = 5
"""The release of transformers from which `fsdp` is a switch that means version 2."""
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)
"""What DeepSpeed takes from the Trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A way to shard; its arguments are those of TrainingArguments, with JSON in place of a file."""

    name: str
    zero: int
    """What is sharded, as the stages of ZeRO number it."""
    wrapper: str = DDP
    arguments: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    """What Accelerate's plugins hold of it."""

    def goes(self, job: TrainerJob) -> bool:
        """Return whether a job that ran as plain data parallelism can be started so."""
        trainer = job.trainer
        if trainer is None or (job.dialect is not None and not self.arguments.keys() <= job.dialect.keys.keys()):
            return False
        if DEEPSPEED in self.arguments:
            return DEEPSPEED in trainer.packages
        # Without a GPU Accelerate leaves the option aside.
        return FSDP not in self.arguments or (trainer.compute > 0 and trainer.major_release >= FIRST_FSDP2)


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


def shardings_for(job: TrainerJob) -> tuple[str, ...]:
    """Return the names of those that a job can have, its own first; none where there is no choice."""
    if job.num_processes == 1 or job.wrapper != DDP:
        return ()
    found = tuple(name for name, each in SHARDINGS.items() if each.goes(job))
    return found if len(found) > 1 else ()


def sharding_of(params: Mapping[str, Value]) -> Sharding:
    """Return that of a point."""
    return SHARDINGS[str(params.get(SHARDING, "none"))]


MBS, RECOMPUTE = "mbs", "checkpointing"
AXES = (MBS, RECOMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpace(AxisSpace):
    """The axes of a job, and the arguments that a point stands for."""

    job: TrainerJob

    @classmethod
    def of(cls, job: TrainerJob, search: str, mbs_max: int) -> Self:
        """Return the axes that `search` names; the others stay as they are."""
        # Without a GPU nothing is gained by sharding: it is searched where it is named.
        has_gpus = job.trainer is not None and job.trainer.compute > 0
        default = (*AXES, SHARDING) if has_gpus else AXES
        names = chosen_axes(search, {DEFAULT: default, **{name: (name,) for name in (*AXES, SHARDING)}})
        own, is_on = job.micro_batch, job.is_checkpointing
        sizes = [size for size in divisors(job.global_batch // job.num_processes) if size <= mbs_max or size == own]
        micro_batches = tuple(sorted(sizes, key=lambda size: (size != own, size)))
        can_turn = RECOMPUTE in names and not job.checkpoints_itself
        shardings = shardings_for(job) if SHARDING in names else ()
        return cls(
            job=job,
            axes={
                MBS: micro_batches if MBS in names else (own,),
                RECOMPUTE: (is_on, not is_on) if can_turn else (is_on,),
                **({SHARDING: shardings} if shardings else {}),
            },
        )

    def own_point(self) -> Params:
        """Return the point that the job itself stands for."""
        return self.first_point

    def near_points(self) -> Iterator[Params]:
        """Yield the job as it is: what the levers of a Trainer need is the same at any point."""
        yield self.first_point

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        return BATCH.reason(JobFacts(), self.layout(params))

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout that a point stands for."""
        recomputes = bool(params[RECOMPUTE])
        return Layout(
            num_gpus=self.job.num_processes,
            micro_batch=int(params[MBS]),
            global_batch=self.job.global_batch,
            zero=sharding_of(params).zero,
            recompute="full/uniform" if recomputes else "none",
            recompute_layers=int(recomputes),
        )

    def smaller(self, params: Mapping[str, Value]) -> Params | None:
        """Return the next point that takes less memory: a smaller micro-batch, or else gradient checkpointing."""
        sizes = [int(size) for size in self.axes[MBS] if int(size) < int(params[MBS])]
        if sizes:
            return {**params, MBS: max(sizes)}
        can_turn = not params[RECOMPUTE] and True in self.axes[RECOMPUTE]
        return {**params, RECOMPUTE: True} if can_turn else None

    def takes_no_less(self, params: Mapping[str, Value], than: Mapping[str, Value]) -> bool:
        """Return whether a point takes as much memory as another of no larger a micro-batch, by all that it saves."""
        keeps_as_much = bool(params[RECOMPUTE]) <= bool(than[RECOMPUTE])
        own, other = sharding_of(params), sharding_of(than)
        return keeps_as_much and own.zero <= other.zero and own.wrapper in (DDP, other.wrapper)

    def accumulation(self, params: Mapping[str, Value]) -> int:
        """Return the passes of an update, so that the global batch stays what it is."""
        return max(self.job.global_batch // (int(params[MBS]) * self.job.num_processes), 1)

    def batch(self, params: Mapping[str, Value]) -> tuple[int, int]:
        """Return the micro-batch and the passes of an update; of packed rows as many as hold the same tokens."""
        size, num_passes = int(params[MBS]), self.accumulation(params)
        per_row = self.job.samples_of_row if params.get(PACKING) else None
        if per_row is None:
            return size, num_passes
        rows = max(round(size / per_row), 1)
        return rows, max(round(size * num_passes / per_row / rows), 1)

    def arguments(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the Trainer of a point must have been made with."""
        size, num_passes = self.batch(params)
        found: dict[str, Value] = {MICRO_BATCH: size, ACCUMULATION: num_passes}
        if not self.job.checkpoints_itself:
            found[CHECKPOINTING] = bool(params[RECOMPUTE])
        found |= sharding_of(params).arguments
        return found | lever_arguments(self.levers_of(params))

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
