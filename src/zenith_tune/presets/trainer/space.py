"""What is searched of a Trainer, and the arguments that a point stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, JobFacts
from zenith_tune.presets.base import DEFAULT, chosen_axes
from zenith_tune.presets.trainer.command import ACCUMULATION, CHECKPOINTING, MICRO_BATCH, PACKING
from zenith_tune.presets.trainer.job import TrainerJob
from zenith_tune.presets.trainer.levers import lever_arguments
from zenith_tune.presets.trainer.sharding import DDP, SHARDING, sharding_of, shardings_for
from zenith_tune.study.parameters import Params, Value

MBS, RECOMPUTE = "mbs", "checkpointing"
AXES = (MBS, RECOMPUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpace:
    """Turn a point into arguments; the first choice of every axis is what the job has as it is."""

    job: TrainerJob
    axes: Mapping[str, tuple[Value, ...]]

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
        return {name: choices[0] for name, choices in self.axes.items()}

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
        """Tell whether a point takes as much memory as another of no larger a micro-batch, by all that it saves."""
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
        return found | lever_arguments({name: value for name, value in params.items() if name not in self.axes})

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
