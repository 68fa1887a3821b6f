"""What a run of a command says of a job of Lightning, what is searched of it, and the settings of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from zenith_tune.evaluators.hooked_run import PLAIN, HookedRun
from zenith_tune.hooks.lightning import ACCUMULATION
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, JobFacts
from zenith_tune.presets.arguments import DEFAULT, chosen_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import ASSUMED, LeverDeclaration, set_levers
from zenith_tune.study.parameters import Params, Value

MBS, STRATEGY = "mbs", "strategy"
STRATEGIES = {
    "ddp": (0, PLAIN),
    "deepspeed_stage_1": (1, "DeepSpeedEngine"),
    "deepspeed_stage_2": (2, "DeepSpeedEngine"),
    "deepspeed_stage_3": (3, "DeepSpeedEngine"),
    "fsdp": (3, "FullyShardedDataParallel"),
}
"""What each strategy shards, as the stages of ZeRO number it, and wraps the model in; the first is the job's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningJob:
    """A job as its run reported it; before that only its processes are known, where the command starts them."""

    num_processes: int = 1
    report: Mapping[str, Any]
    """What the first rank said of itself; empty before a run."""
    run: HookedRun | None = None

    @property
    def micro_batch(self) -> int:
        """Samples of a pass of one rank; 0 where they are not known, or no trial may change them."""
        return next(iter(self.report.get("batch_sizes") or ()), 0)

    @property
    def global_batch(self) -> int:
        """Samples of an update, which no trial changes; passes, where the samples are not known."""
        return max(self.micro_batch, 1) * int(self.report.get("accumulation") or 1) * self.num_processes

    @property
    def shards(self) -> tuple[str, ...]:
        """The strategies that it can be started with: its own, where that is plain data parallelism, and others."""
        if self.report.get("wrapper") != PLAIN or not self.compute:
            return ()
        return tuple(name for name in STRATEGIES if self.report.get("deepspeed") or not name.startswith("deepspeed"))

    @property
    def compute(self) -> int:
        """The GPU's compute capability times ten; 0 without a GPU, or before the first run."""
        return int(self.report.get("compute") or 0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that levers change."""
        return self.run.settings if self.run else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningPoint:
    """A point of a job that levers are asked for."""

    job: LightningJob
    params: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningLever(LeverDeclaration[LightningPoint]):
    """A lever of Lightning."""

    setting: str
    sets: Value
    least_compute: int
    """The compute capability, times ten, that it needs."""

    def is_for(self, at: LightningPoint) -> bool:
        """Return whether it can be turned on for a point of a job that does not have it yet."""
        is_new = at.job.settings.get(self.setting) not in (None, self.sets)
        return is_new and at.job.compute >= self.least_compute and self.goes(at)


def _is_fp32(at: LightningPoint) -> bool:
    return at.job.settings.get("precision") == "32-true"


LEVERS = (
    LightningLever(
        name="compile",
        setting="compile",
        sets=True,
        least_compute=70,
        # Lightning compiles for one device, DDP and FSDP.
        goes=lambda at: "deepspeed" not in str(at.params.get(STRATEGY)),
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: as of the Trainer of transformers; fused kernels and fewer launches",
    ),
    LightningLever(
        name="tf32",
        setting="matmul",
        sets="high",
        least_compute=80,
        goes=_is_fp32,
        saves={"compute": 0.6},
        numerics=True,
        source=f"{ASSUMED}: matrix products with 10 bits of mantissa, at several times the rate",
    ),
    LightningLever(
        name="bf16",
        setting="precision",
        sets="bf16-mixed",
        least_compute=80,
        goes=_is_fp32,
        saves={"compute": 0.7},
        memory=-0.2,
        excludes=frozenset({"tf32"}),
        numerics=True,
        source=f"{ASSUMED}: Micikevicius et al. 2017 (arXiv 1710.03740), with bfloat16",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpace(AxisSpace):
    """The axes of a job, and the settings that a point stands for."""

    job: LightningJob

    @classmethod
    def of(cls, job: LightningJob, search: str, mbs_max: int) -> Self:
        """Return the axes that `search` names; the others stay as they are."""
        # The statistics of BatchNorm are those of a micro-batch.
        default = (STRATEGY,) if job.report.get("batch_norm") else (MBS, STRATEGY)
        names = chosen_axes(search, {DEFAULT: default, MBS: (MBS,), STRATEGY: (STRATEGY,)})
        own = max(job.micro_batch, 1)
        sizes = divisors(job.global_batch // job.num_processes) if job.micro_batch and MBS in names else [own]
        kept = sorted((size for size in sizes if size <= mbs_max or size == own), key=lambda size: (size != own, size))
        sharded = {STRATEGY: job.shards} if job.shards and STRATEGY in names else {}
        return cls(job=job, axes={MBS: tuple(kept), **sharded})

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        return BATCH.reason(JobFacts(), self.layout(params))

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout that a point stands for."""
        return Layout(
            num_gpus=self.job.num_processes,
            micro_batch=int(params[MBS]),
            global_batch=self.job.global_batch,
            zero=strategy_of(params)[0],
        )

    def accumulation(self, params: Mapping[str, Value]) -> int:
        """Return the passes of an update, so that the global batch stays what it is."""
        return max(self.job.global_batch // (int(params[MBS]) * self.job.num_processes), 1)

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the hook sets for a point: what is not so anyway."""
        found = lever_settings(self.levers_of(params))
        if self.job.micro_batch and params[MBS] != self.job.micro_batch:
            found |= {"micro_batch": params[MBS], ACCUMULATION: self.accumulation(params)}
        return found if params.get(STRATEGY, "ddp") == "ddp" else {**found, STRATEGY: params[STRATEGY]}


def strategy_of(params: Mapping[str, Value]) -> tuple[int, str]:
    """Return what the strategy of a point shards, and what it wraps the model in."""
    return STRATEGIES[str(params.get(STRATEGY, "ddp"))]


def lever_settings(levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of levers, by their names."""
    return {lever.setting: lever.sets for lever in set_levers(LEVERS, levers)}
