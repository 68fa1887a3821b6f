"""What is planned for, with the DeepSpeed configuration that decides how its memory is divided."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.strategies.zero_progressive.axes import CHECKPOINTING, CPU
from zenith_tune.strategies.zero_progressive.ds_config import STAGE, DsConfig
from zenith_tune.study.parameters import Value
from zenith_tune.zero.state_bytes import HALF, SINGLE, StateBytes, ZeroSetting, state_bytes

_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_MANY_RANKS = 4096
"""So many that what is divided over them counts for nothing, and only activations are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSubject(PlanSubject):
    """Hold model, cluster, job and configuration; a point's own values go before those of the configuration."""

    config: DsConfig
    num_ranks: int
    """Data-parallel ranks: what the stages divide by."""
    model_ranks: int = 1
    """Ranks that share one copy of the model by the script's own doing."""
    recomputes: bool = False
    """Whether activations are recomputed where a point does not say."""

    @property
    def capacity_bytes(self) -> float:
        """What a GPU has for training: its memory less what the driver's context takes."""
        return float(self.cluster.gpu.memory_bytes) - _context_bytes(self.job.framework.name)

    def states(self, params: Mapping[str, Value]) -> StateBytes:
        """Return what a GPU keeps whatever the micro-batch."""
        return state_bytes(self._setting(params))

    def planned_activations(self, params: Mapping[str, Value]) -> float:
        """Return the planner's figure for activations at their peak."""
        mbs, recomputes = int(params["mbs"]), self.recomputes_at(params)
        return _planned_activations(self, mbs, recomputes) / self.model_ranks

    def recomputes_at(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a point recomputes activations."""
        return bool(params.get(CHECKPOINTING, self.recomputes))

    def _setting(self, params: Mapping[str, Value]) -> ZeroSetting:
        stage = params.get("stage", self.config.get(STAGE))
        return ZeroSetting(
            stage=int(stage) if isinstance(stage, int) else 0,
            num_ranks=self.num_ranks,
            num_params=self.model.num_params // self.model_ranks,
            precision_bytes=SINGLE if self.job.precision == "fp32" else HALF,
            gradient_bytes=_TYPE_BYTES.get(str(self.config.get(("data_types", "grad_accum_dtype")))),
            offload_optimizer=self._is_offloaded(params, "offload_optimizer", "cpu_offload"),
            offload_param=self._is_offloaded(params, "offload_param", "cpu_offload_param"),
            reduce_bucket_size=self._size(params, "reduce_bucket_size", 500_000_000),
            overlap_comm=self._flag(params, "overlap_comm"),
            contiguous_gradients=self._flag(params, "contiguous_gradients") is not False,
            prefetch_bucket_size=self._size(params, "stage3_prefetch_bucket_size", 50_000_000),
            max_live_parameters=self._size(params, "stage3_max_live_parameters", 1_000_000_000),
        )

    def _size(self, params: Mapping[str, Value], name: str, default: int) -> int:
        value = params.get(name)
        if isinstance(value, int):
            return value
        return self.config.count(("zero_optimization", name)) or default

    def _flag(self, params: Mapping[str, Value], name: str) -> bool | None:
        value = params.get(name, self.config.get(("zero_optimization", name)))
        return value if isinstance(value, bool) else None

    def _is_offloaded(self, params: Mapping[str, Value], name: str, old_name: str) -> bool:
        if name in params:
            return params[name] == CPU
        device = self.config.get(("zero_optimization", name, "device"))
        return device in ("cpu", "nvme") or self.config.flag(("zero_optimization", old_name))


@functools.cache
def _context_bytes(framework: str) -> float:
    from zenith_tune.calibrate.calibration_file import default_calibration

    return default_calibration(framework).memory.context_bytes


# By what it depends on and not by the whole subject, whose configuration has no hash.
def _planned_activations(subject: ZeroSubject, mbs: int, recomputes: bool) -> float:
    return _activations(PlanSubject(model=subject.model, cluster=subject.cluster, job=subject.job), mbs, recomputes)


@functools.lru_cache(maxsize=4096)
def _activations(subject: PlanSubject, mbs: int, recomputes: bool) -> float:
    """Return what a step needs at its peak for one micro-batch, with what the allocator holds in reserve for it."""
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimate.memory import estimate_memory
    from zenith_tune.estimate.workload import Workload
    from zenith_tune.layouts.layout_rows import batch_of

    layout = Layout(
        num_gpus=_MANY_RANKS,
        micro_batch=mbs,
        global_batch=mbs * _MANY_RANKS,
        zero=3,
        recompute="full/uniform" if recomputes else "none",
        recompute_layers=int(recomputes),
    )
    job = subject.job
    memory = default_calibration(job.framework.name).memory
    found = estimate_memory(Workload.of(subject.model, job), batch_of([layout]), job.framework, memory)
    return float(sum(found.parts[name][0] for name in ("activations", "working", "logits", "reserve")))
