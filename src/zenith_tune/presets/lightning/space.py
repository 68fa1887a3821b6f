"""What a run says of a job of Lightning, what is searched of it, and the settings of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from zenith_tune.evaluators.hooked_run import PLAIN
from zenith_tune.hooks.lightning import ACCUMULATION
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.hooked_job import (
    ENVIRONMENT_LEVERS,
    MBS,
    HookedJob,
    HookedLever,
    HookedSpace,
    Sharding,
    precision_levers,
)
from zenith_tune.study.parameters import Value

STRATEGY = "strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningJob(HookedJob):
    """A job as its run reported it; before that only its processes are known, where the command starts them."""

    packages = None
    report: Mapping[str, Any] = field(default_factory=dict)
    """What its first process said of itself; empty before a run."""

    @property
    def is_known(self) -> bool:
        return bool(self.report)

    @property
    def can_resize(self) -> bool:
        """Whether the batch is that of one torch DataLoader."""
        return bool(self.report.get("batch_sizes"))

    counts_passes = can_resize

    @property
    def micro_batch(self) -> int:
        """Samples of a pass of one rank; 1 where they are not known."""
        return int(self.report["batch_sizes"][0]) if self.can_resize else 1

    @property
    def accumulation(self) -> int:
        return int(self.report.get("accumulation") or 1)

    @property
    def compute(self) -> int:
        return int(self.report.get("compute") or 0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that levers change, and those of DeepSpeed."""
        return self.report.get("settings") or {}

    @property
    def is_fp32(self) -> bool:
        return self.settings.get("precision") == "32-true"

    @property
    def is_plain(self) -> bool:
        return self.num_processes == 1 or self.wrapper == PLAIN

    def lacks(self, settings: Mapping[str, Value]) -> bool:
        return all(self.settings.get(name) not in (None, value) for name, value in settings.items())


LEVERS: tuple[HookedLever[LightningJob], ...] = (
    HookedLever(
        name="compile",
        sets={"compile": True},
        least_compute=70,
        goes=lambda at: "deepspeed" not in str(at.params.get(STRATEGY)),
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: as of the Trainer of transformers; fused kernels and fewer launches",
    ),
    *ENVIRONMENT_LEVERS,
    *precision_levers(tf32={"matmul": "high"}, bf16={"precision": "bf16-mixed"}),
)


def _strategy(name: str, zero: int, wrapper: str, settings: Mapping[str, Value] | None = None) -> Sharding:
    arguments = {STRATEGY: name}
    return Sharding(name=name, zero=zero, wrapper=wrapper, arguments=arguments, settings=settings or {})


STRATEGIES = (
    Sharding(name="ddp", zero=0),
    *(
        _strategy(f"deepspeed_stage_{stage}", stage, "DeepSpeedEngine", {"zero_optimization.stage": stage})
        for stage in (1, 2, 3)
    ),
    _strategy("fsdp", 3, "FullyShardedDataParallel"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpace(HookedSpace[LightningJob]):
    """The axes of a job, and the settings that a point stands for."""

    sharding_axis = STRATEGY
    shardings: ClassVar = {strategy.name: strategy for strategy in STRATEGIES}

    @classmethod
    def choices(cls, job: LightningJob) -> Mapping[str, tuple[Value, ...]]:
        """Return the strategies; there is a choice where the job's own is plain data parallelism on GPUs."""
        can_shard = job.wrapper == PLAIN and job.compute
        has_deepspeed = job.report.get("deepspeed")
        names = (name for name in cls.shardings if has_deepspeed or not name.startswith("deepspeed"))
        return {STRATEGY: tuple(names) if can_shard else ()}

    @classmethod
    def on_request(cls, job: LightningJob) -> tuple[str, ...]:
        """Return the micro-batch where BatchNorm takes its statistics of it."""
        return (MBS,) if job.report.get("batch_norm") else ()

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the hook sets for a point: what is not so anyway."""
        size, num_passes = self.batch(params)
        batch = {} if size == self.job.micro_batch else {"micro_batch": size, ACCUMULATION: num_passes}
        return {**self.lever_values(LEVERS, params), **batch, **self.sharding(params).arguments}
