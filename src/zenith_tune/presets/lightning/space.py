"""What a run says of a job of Lightning, what is searched of it, and the settings of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from zenith_tune.evaluators.hooked_run import PLAIN
from zenith_tune.hooks.lightning import ACCUMULATION
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.presets.arguments import DEFAULT, chosen_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import ASSUMED, LeverDeclaration, set_levers
from zenith_tune.study.parameters import Params, Value

MBS, STRATEGY = "mbs", "strategy"
DDP = "ddp"
STRATEGIES = {
    DDP: (0, PLAIN),
    **{f"deepspeed_stage_{stage}": (stage, "DeepSpeedEngine") for stage in (1, 2, 3)},
    "fsdp": (3, "FullyShardedDataParallel"),
}
"""What each strategy shards, as the stages of ZeRO number it, and wraps the model in; the first is the job's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningJob:
    """A job as its run reported it; before that only its processes are known, where the command starts them."""

    num_processes: int = 1
    samples: int | None = None
    """Of an update, as it was seen."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What its first process said of itself; empty before a run."""

    @property
    def micro_batch(self) -> int:
        """Samples of a pass of one rank; 0 where they are not known, or no trial may change them."""
        return next(iter(self.report.get("batch_sizes") or ()), 0)

    @property
    def global_batch(self) -> int:
        """Samples of an update, which no trial changes; passes, where the samples are not known."""
        return max(self.micro_batch, 1) * int(self.report.get("accumulation") or 1) * self.num_processes

    @property
    def compute(self) -> int:
        """The GPU's compute capability times ten; 0 without a GPU, or before the first run."""
        return int(self.report.get("compute") or 0)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that levers change, and those of DeepSpeed."""
        return self.report.get("settings") or {}

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those that it can be started with, its own first; none unless that is plain data parallelism on GPUs."""
        if self.report.get("wrapper") != PLAIN or not self.compute:
            return ()
        return tuple(name for name in STRATEGIES if self.report.get("deepspeed") or not name.startswith("deepspeed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningPoint:
    """A point of a job that levers are asked for."""

    job: LightningJob
    params: Params


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningLever(LeverDeclaration[LightningPoint]):
    """A lever of Lightning."""

    sets: tuple[str, Value]
    least_compute: int
    """The compute capability, times ten, that it needs."""

    def is_for(self, at: LightningPoint) -> bool:
        """Return whether it can be turned on for a point of a job that does not have it yet."""
        name, value = self.sets
        is_new = at.job.settings.get(name) not in (None, value)
        return is_new and at.job.compute >= self.least_compute and self.goes(at)


def _is_fp32(at: LightningPoint) -> bool:
    return at.job.settings.get("precision") == "32-true"


LEVERS = (
    LightningLever(
        name="compile",
        sets=("compile", True),
        least_compute=70,
        goes=lambda at: "deepspeed" not in str(at.params.get(STRATEGY)),
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: as of the Trainer of transformers; fused kernels and fewer launches",
    ),
    LightningLever(
        name="tf32",
        sets=("matmul", "high"),
        least_compute=80,
        goes=_is_fp32,
        saves={"compute": 0.6},
        numerics=True,
        source=f"{ASSUMED}: matrix products with 10 bits of mantissa, at several times the rate",
    ),
    LightningLever(
        name="bf16",
        sets=("precision", "bf16-mixed"),
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
        own, per_rank = max(job.micro_batch, 1), job.global_batch // job.num_processes
        others = [size for size in divisors(per_rank) if size <= mbs_max and size != own]
        mbs = (own, *others) if job.micro_batch and MBS in names else (own,)
        return cls(
            job=job, axes={MBS: mbs, **({STRATEGY: job.strategies} if job.strategies and STRATEGY in names else {})}
        )

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return None: every micro-batch divides the global batch."""
        return None

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout that a point stands for."""
        num_gpus, global_batch, (zero, _) = self.job.num_processes, self.job.global_batch, strategy_of(params)
        return Layout(num_gpus=num_gpus, micro_batch=int(params[MBS]), global_batch=global_batch, zero=zero)

    def accumulation(self, params: Mapping[str, Value]) -> int:
        """Return the passes of an update, so that the global batch stays what it is."""
        return max(self.job.global_batch // (int(params[MBS]) * self.job.num_processes), 1)

    def lever_settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return the settings of a point's levers."""
        return dict(lever.sets for lever in set_levers(LEVERS, self.levers_of(params)))

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the hook sets for a point: what is not so anyway."""
        found = self.lever_settings(params)
        if params[MBS] != max(self.job.micro_batch, 1):
            found |= {"micro_batch": params[MBS], ACCUMULATION: self.accumulation(params)}
        return found if params.get(STRATEGY, DDP) == DDP else {**found, STRATEGY: params[STRATEGY]}


def strategy_of(params: Mapping[str, Value]) -> tuple[int, str]:
    """Return what the strategy of a point shards, and what it wraps the model in."""
    return STRATEGIES[str(params.get(STRATEGY, DDP))]
