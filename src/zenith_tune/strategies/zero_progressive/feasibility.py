"""Whether a point fits a GPU's memory, as predicted and as runs have measured it, with the arithmetic.

What a GPU keeps for a model under ZeRO: weights, gradients, optimizer states, and the buffers of the communication.

Legend: P parameters, N data-parallel ranks, w, g, o bytes per parameter of weights, gradients and optimizer states.

In 16-bit precision, bf16 and fp16 alike, w = 2, g = 2 and o = 16 (fp32 master copy, momentum, variance and the copy in
half precision); in fp32 w = 4, g = 4, o = 8. Stage 1 divides o by N, stage 2 also g, stage 3 also w (Rajbhandari et al.
2020, arXiv 1910.02054, figure 1; the bytes are those that DeepSpeed's autotuner counts). Buffers are those that
runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19 allocate.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.describe.deepspeed_config import CHECKPOINTING, CPU, STAGE, DsConfig
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_bytes

HALF, SINGLE = 2, 4
STATE_BYTES = {HALF: (2, 2, 16), SINGLE: (4, 4, 8)}
"""w, g and o by the bytes of the precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSetting:
    """Hold what of a configuration decides about memory; sizes of buckets are in elements."""

    stage: int
    num_ranks: int
    num_params: int
    precision_bytes: int = HALF
    gradient_bytes: int | None = None
    """Of the type that gradients are accumulated in, where the configuration names one."""
    offload_optimizer: bool = False
    offload_param: bool = False
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None
    """None: as DeepSpeed decides, which is for stage 3 alone."""
    contiguous_gradients: bool = True
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Hold bytes per GPU by kind, and how they came about."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    arithmetic: str

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def state_bytes(setting: ZeroSetting) -> StateBytes:
    """Return what one GPU keeps whatever the micro-batch.

    >>> seven_billion = ZeroSetting(stage=1, num_ranks=64, num_params=7_500_000_000, reduce_bucket_size=0)
    >>> [round(part / 1e9, 1) for part in (state_bytes(seven_billion).weights, state_bytes(seven_billion).optimizer)]
    [15.0, 1.9]
    """
    w, g, o = per_parameter(setting)
    stage, whole, shard = setting.stage, setting.num_params, setting.num_params / setting.num_ranks
    weights = w * (shard if stage >= 3 else whole)
    # With the optimizer in host memory, gradients go there as soon as they are reduced.
    gradients = 0.0 if _keeps_no_gradients(setting) else g * (shard if stage >= 2 else whole)
    optimizer = 0.0 if setting.offload_optimizer and stage >= 1 else o * (shard if stage >= 1 else whole)
    return StateBytes(
        weights=0.0 if setting.offload_param and stage >= 3 else weights,
        gradients=gradients,
        optimizer=optimizer,
        buffers=_buffers(setting, w),
        arithmetic=_arithmetic(setting, w, g, o),
    )


def per_parameter(setting: ZeroSetting) -> tuple[int, int, int]:
    """Return w, g and o."""
    w, g, o = STATE_BYTES[setting.precision_bytes]
    return w, setting.gradient_bytes or g, o


def shown(states: StateBytes, activations: str) -> str:
    """Describe the sum, as short as a table's cell wants it; the caller describes the `activations`."""
    buffers = [f"buffers {format_bytes(states.buffers)}"] if states.buffers else []
    return "; ".join([states.arithmetic, activations, *buffers])


def _keeps_no_gradients(setting: ZeroSetting) -> bool:
    return setting.offload_optimizer and setting.stage >= 2


def _buffers(setting: ZeroSetting, weight_bytes: int) -> float:
    """Return the buckets that gradients are reduced in, two where that overlaps, and what stage 3 gathers."""
    if setting.stage == 0:
        return 0.0
    overlaps = setting.stage == 3 if setting.overlap_comm is None else setting.overlap_comm
    num_buckets = 2 if overlaps and setting.contiguous_gradients and setting.stage < 3 else 1
    buckets = float(num_buckets * setting.reduce_bucket_size * setting.precision_bytes)
    if setting.stage < 3:
        return buckets
    gathered = min(setting.num_params, setting.max_live_parameters + setting.prefetch_bucket_size)
    return buckets + float(weight_bytes * gathered)


def _arithmetic(setting: ZeroSetting, w: int, g: int, o: int) -> str:
    """Say which bytes are divided by the ranks, and which are in host memory."""
    stage, ranks = setting.stage, setting.num_ranks
    shares = {"weights": (w, 3), "gradients": (g, 2), "optimizer": (o, 1)}
    terms = [f"{size}/{ranks}" if stage >= first and ranks > 1 else str(size) for size, first in shares.values()]
    hosts = [name for name, is_there in _offloaded(setting).items() if is_there]
    host = f", {' and '.join(hosts)} in host memory" if hosts else ""
    return f"{setting.num_params / 1e9:.3g}e9 parameters x ({' + '.join(terms)}) bytes at stage {stage}{host}"


def _offloaded(setting: ZeroSetting) -> dict[str, bool]:
    return {
        "optimizer": setting.offload_optimizer and setting.stage >= 1,
        "weights": setting.offload_param and setting.stage >= 3,
    }


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
        # Kept by what it depends on and not by the whole subject, whose configuration has no hash.
        planned = PlanSubject(model=self.model, cluster=self.cluster, job=self.job)
        return _activations(planned, int(params["mbs"]), self.recomputes_at(params)) / self.model_ranks

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


@functools.lru_cache(maxsize=4096)
def _activations(subject: PlanSubject, mbs: int, recomputes: bool) -> float:
    """Return what a step needs at its peak for one micro-batch, with what the allocator holds in reserve for it."""
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimates.memory import estimate_memory
    from zenith_tune.estimates.workload import Workload
    from zenith_tune.layouts.layout_batch import batch_of

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


Point = tuple[tuple[str, Value], ...]

SURE = 0.5
"""The share of the planned activations that a point surely needs: before any run, no more is held against it."""
UNSURE = 1.05
"""By how much the arithmetic may be off where runs have measured what it rests on."""
REFUTED = 0.8
"""A single run, scaled, speaks against what is predicted where it leaves a fifth of the memory."""
HOPELESS = 1.25
"""What is beyond the memory by this factor, by what runs have measured, is not tried."""
SPARE = 1.25
"""How far what is counted may exceed what is there at once: 20 bytes per parameter over 16, without passing copies."""


def why_too_large(
    subject: ZeroSubject, params: Mapping[str, Value], activations: float, origin: str, share: float = 1.0
) -> str | None:
    """Return the sum that exceeds the memory, or None where it does not.

    `origin` says how the activations are known, `share` what runs have measured of the states over what is predicted.
    """
    states, capacity = subject.states(params), subject.capacity_bytes
    needed = share * states.total + activations
    if needed <= capacity:
        return None
    part = f"activations {origin} {format_bytes(activations)} at micro-batch {params['mbs']}"
    measured = f"; the states take {share:.0%} of that" if share < 1 else ""
    return f"needs {format_bytes(needed)} of {format_bytes(capacity)}: {shown(states, part)}{measured}"


def why_surely_too_large(subject: ZeroSubject, params: Mapping[str, Value]) -> str | None:
    """Return the sum that exceeds the memory whatever of it may not be there at once."""
    activations = SURE * subject.planned_activations(params)
    if subject.states(params).total + activations <= SPARE * subject.capacity_bytes:
        return None
    return why_too_large(subject, params, activations, "at least")


class ActivationProfile:
    """Hold what runs have measured of memory: activations per sample, and the states over what is predicted for them.

    Two runs that differ in their micro-batch alone tell activations by themselves. Of one run it is the peak over whole
    steps less the states, or the planner's figure where there is less than the states alone should take. The run with
    the largest micro-batch counts: what does not grow weighs least in it.
    """

    def __init__(self, subject: ZeroSubject) -> None:
        self.subject = subject
        self._peaks: dict[Point, dict[int, int]] = {}
        self._measured: dict[bool, tuple[int, float]] = {}
        self._share = 1.0
        self._sloped: set[bool] = set()
        """Ways of keeping activations that two runs have measured."""
        self._vague: set[bool] = set()

    def observe(self, trial: Trial) -> None:
        """Learn from a run whose log tells its peak memory."""
        if not trial.ok or not trial.peak_memory_bytes:
            return
        peak, mbs, mode = trial.peak_memory_bytes, int(trial.params["mbs"]), self.subject.recomputes_at(trial.params)
        others = tuple((name, value) for name, value in trial.params.items() if name != "mbs")
        peaks = self._peaks.setdefault(others, {})
        peaks[mbs] = peak
        states = self.subject.states(trial.params).total
        activations = (slope(peaks) or 0.0) * mbs or peak - states
        self._vague.discard(mode)
        if len(peaks) > 1:
            self._sloped.add(mode)
        if activations <= 0:
            self._vague |= {mode} - self._sloped
            activations = min(self.subject.planned_activations(trial.params), peak / 2)
        self._share = min((peak - activations) / states, 1.0)
        known = self._measured.get(mode)
        if known is None or mbs >= known[0]:
            self._measured[mode] = mbs, activations / mbs

    @property
    def capacity_bytes(self) -> float:
        """What a GPU has for training."""
        return self.subject.capacity_bytes

    def why_hopeless(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point is not worth a trial; what is predicted counts only as far as runs do not refute it."""
        if not self.is_measured(params):
            return why_surely_too_large(self.subject, params)
        if self.is_vague(params):
            return None
        needed, limit = self.needed(params), self.capacity_bytes
        doubtful = UNSURE if self.subject.recomputes_at(params) in self._sloped else REFUTED
        if needed > doubtful * limit and (reason := why_surely_too_large(self.subject, params)) is not None:
            return reason
        return self.why_not(params) if needed > HOPELESS * limit else None

    def is_vague(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a run took less than its states should: then activations are known by two runs alone."""
        return self.subject.recomputes_at(params) in self._vague

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a run has measured this way of keeping activations."""
        return self.subject.recomputes_at(params) in self._measured

    def activations(self, params: Mapping[str, Value]) -> float:
        """Return the activations of a point: what was measured, scaled to its micro-batch, or the planner's figure."""
        known = self._measured.get(self.subject.recomputes_at(params))
        return known[1] * int(params["mbs"]) if known else self.subject.planned_activations(params)

    def needed(self, params: Mapping[str, Value]) -> float:
        """Return the bytes that a point needs."""
        return self._share * self.subject.states(params).total + self.activations(params)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches, ascending, that fits; None where none does."""
        fits = [mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None]
        return fits[-1] if fits else None

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point does not fit, or None."""
        origin = "measured and scaled to" if self.is_measured(params) else "planned as"
        return why_too_large(self.subject, params, self.activations(params), origin, self._share)


def slope(peaks: Mapping[int, int]) -> float | None:
    """Return the bytes that one more sample takes, of the two largest micro-batches; None of fewer than two."""
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = sorted(peaks.items())[-2:]
    return max((high - low) / (large - small), 0.0)
