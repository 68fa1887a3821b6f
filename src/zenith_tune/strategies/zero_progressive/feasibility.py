"""Whether a point fits a GPU's memory, as predicted and as runs have measured it, with the arithmetic.

Legend: P parameters, N data-parallel ranks, w, g, o bytes per parameter of weights, gradients and optimizer states.

In 16-bit precision, bf16 and fp16 alike, w = 2, g = 2 and o = 16 (fp32 master copy, momentum, variance and the copy in
half precision); in fp32 w = 4, g = 4, o = 8. Stage 1 divides o by N, stage 2 also g, stage 3 also w (Rajbhandari et al.
2020, arXiv 1910.02054, figure 1; the bytes are those that DeepSpeed's autotuner counts). Buffers are those that
runtime/zero/stage_1_and_2.py and stage3.py of DeepSpeed 0.19 allocate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.describe.deepspeed_config import CHECKPOINTING, CPU, STAGE, DsConfig
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.evaluators.failures.failures import FailedAllocation
from zenith_tune.layouts.layout import Layout
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_bytes

HALF, SINGLE = 2, 4
STATE_BYTES = {HALF: (2, 2, 16), SINGLE: (4, 4, 8)}
"""w, g and o by the bytes of the precision."""
REDUCE_BUCKET, PREFETCH_BUCKET, MAX_LIVE = 500_000_000, 50_000_000, 1_000_000_000
"""DeepSpeed's default sizes, in elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSetting:
    """The part of a configuration that decides how much memory is used; bucket sizes are in elements."""

    stage: int
    num_ranks: int
    num_params: int
    precision_bytes: int = HALF
    gradient_bytes: int | None = None
    """Size of the type that gradients are accumulated in, where the configuration names one."""
    offload_optimizer: bool = False
    offload_param: bool = False
    reduce_bucket_size: int = REDUCE_BUCKET
    overlap_comm: bool | None = None
    """None is DeepSpeed's default: on at stage 3, off below."""
    contiguous_gradients: bool = True
    prefetch_bucket_size: int = PREFETCH_BUCKET
    max_live_parameters: int = MAX_LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per GPU by kind, and the arithmetic behind them."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    arithmetic: str

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.buffers


def state_bytes(setting: ZeroSetting) -> StateBytes:
    """Return what one GPU keeps whatever the micro-batch."""
    stage, ranks, params = setting.stage, setting.num_ranks, setting.num_params
    w, g, o = STATE_BYTES[setting.precision_bytes]
    g = setting.gradient_bytes or g
    optimizer_on_host = setting.offload_optimizer and stage >= 1
    weights_on_host = setting.offload_param and stage >= 3

    def kept(size: int, first_stage: int) -> float:
        return size * (params / ranks if stage >= first_stage else params)

    shares = ((w, 3), (g, 2), (o, 1))
    terms = [f"{size}/{ranks}" if stage >= first and ranks > 1 else f"{size}" for size, first in shares]
    on_host = ["optimizer"] * optimizer_on_host + ["weights"] * weights_on_host
    host = f", {' and '.join(on_host)} in host memory" if on_host else ""
    return StateBytes(
        weights=0.0 if weights_on_host else kept(w, 3),
        # With the optimizer in host memory, gradients go there as soon as they are reduced.
        gradients=0.0 if optimizer_on_host and stage >= 2 else kept(g, 2),
        optimizer=0.0 if optimizer_on_host else kept(o, 1),
        buffers=_buffers(setting, w),
        arithmetic=f"{params / 1e9:.3g}e9 parameters x ({' + '.join(terms)}) bytes at stage {stage}{host}",
    )


def _buffers(setting: ZeroSetting, weight_bytes: int) -> float:
    """Return the buckets that gradients are reduced in, two where that overlaps, and what stage 3 gathers."""
    if setting.stage == 0:
        return 0.0
    bucket = float(setting.reduce_bucket_size * setting.precision_bytes)
    if setting.stage < 3:
        return 2 * bucket if setting.overlap_comm and setting.contiguous_gradients else bucket
    gathered = min(setting.num_params, setting.max_live_parameters + setting.prefetch_bucket_size)
    return bucket + float(weight_bytes * gathered)


_TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_MANY_RANKS = 4096
"""Enough ranks that sharded states take next to nothing, and only activations are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSubject(PlanSubject):
    """Model, cluster, job and configuration; a point's own values override those of the configuration."""

    config: DsConfig
    num_ranks: int
    """Data-parallel ranks, which the stages divide by."""
    model_ranks: int = 1
    """Ranks that share one copy of the model, where the script itself splits it."""
    recomputes: bool = False
    """Whether activations are recomputed where a point does not say."""

    @property
    def capacity_bytes(self) -> float:
        """A GPU's memory less the driver's context."""
        return float(self.cluster.gpu.memory_bytes) - _context_bytes(self.job.framework.name)

    def states(self, params: Mapping[str, Value]) -> StateBytes:
        """Return what a GPU keeps whatever the micro-batch."""
        stage = params.get("stage", self.config.get(STAGE))
        return state_bytes(
            ZeroSetting(
                stage=int(stage) if isinstance(stage, int) else 0,
                num_ranks=self.num_ranks,
                num_params=self.model.num_params // self.model_ranks,
                precision_bytes=SINGLE if self.job.precision == "fp32" else HALF,
                gradient_bytes=_TYPE_BYTES.get(str(self.config.get(("data_types", "grad_accum_dtype")))),
                offload_optimizer=self._is_offloaded(params, "offload_optimizer", "cpu_offload"),
                offload_param=self._is_offloaded(params, "offload_param", "cpu_offload_param"),
                reduce_bucket_size=self._size(params, "reduce_bucket_size", REDUCE_BUCKET),
                overlap_comm=self._flag(params, "overlap_comm"),
                contiguous_gradients=self._flag(params, "contiguous_gradients") is not False,
                prefetch_bucket_size=self._size(params, "stage3_prefetch_bucket_size", PREFETCH_BUCKET),
                max_live_parameters=self._size(params, "stage3_max_live_parameters", MAX_LIVE),
            )
        )

    def planned_activations(self, params: Mapping[str, Value]) -> float:
        """Return the planner's figure for activations at their peak."""
        # The cache's key is what the figure depends on: the configuration cannot be hashed.
        planned = PlanSubject(model=self.model, cluster=self.cluster, job=self.job)
        return _activations(planned, int(params["mbs"]), self.recomputes_at(params)) / self.model_ranks

    def recomputes_at(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a point recomputes activations."""
        return bool(params.get(CHECKPOINTING, self.recomputes))

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


SURE = 0.5
"""Share of the planned activations that a point is assumed to need before any run."""
UNSURE = 1.05
"""Factor by which the arithmetic may be off once runs have measured its terms."""
REFUTED = 0.8
"""Share of the memory below which a single run, scaled, overrules the prediction."""
HOPELESS = 1.25
"""Factor over the memory, by measured figures, from which a point is not tried."""
SPARE = 1.25
"""Ratio of counted to simultaneous bytes: 20 bytes per parameter over 16, without temporary copies."""


def why_too_large(
    subject: ZeroSubject, params: Mapping[str, Value], activations: float, origin: str, share: float = 1.0
) -> str | None:
    """Return the sum that exceeds the memory, or None where it does not.

    `origin` says how the activations are known, `share` is the ratio of measured to predicted states.
    """
    states, capacity = subject.states(params), subject.capacity_bytes
    needed = share * states.total + activations
    if needed <= capacity:
        return None
    parts = [states.arithmetic, f"activations {origin} {format_bytes(activations)} at micro-batch {params['mbs']}"]
    if states.buffers:
        parts.append(f"buffers {format_bytes(states.buffers)}")
    if share < 1:
        parts.append(f"the states take {share:.0%} of that")
    return f"needs {format_bytes(needed)} of {format_bytes(capacity)}: {'; '.join(parts)}"


def why_surely_too_large(subject: ZeroSubject, params: Mapping[str, Value]) -> str | None:
    """Return the sum that exceeds the memory even if not all of it is there at once."""
    activations = SURE * subject.planned_activations(params)
    if subject.states(params).total + activations <= SPARE * subject.capacity_bytes:
        return None
    return why_too_large(subject, params, activations, "at least")


class ActivationProfile:
    """Measured memory of a known model: activations per sample, and the ratio of measured to predicted states.

    Two runs that differ only in their micro-batch measure activations directly. From one run, activations are its peak
    less the states, or the planner's figure where the peak is below the states. The run with the largest micro-batch
    counts, since constant parts weigh least in it.
    """

    def __init__(self, subject: ZeroSubject) -> None:
        self.subject = subject
        self._peaks: dict[Point, dict[int, int]] = {}
        self._measured: dict[bool, tuple[int, float]] = {}
        self._share = 1.0
        self._sloped: set[bool] = set()
        """Recomputation modes that two runs have measured."""
        self._vague: set[bool] = set()

    def observe(self, trial: Trial) -> None:
        """Learn from a run that reported its peak memory."""
        if not trial.ok or not trial.peak_memory_bytes:
            return
        peak, mbs, mode = trial.peak_memory_bytes, int(trial.params["mbs"]), self.subject.recomputes_at(trial.params)
        peaks = self._peaks.setdefault(_without_mbs(trial.params), {})
        peaks[mbs] = peak
        states = self.subject.states(trial.params).total
        activations = (_slope(peaks) or 0.0) * mbs or peak - states
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
        """A GPU's memory for training."""
        return self.subject.capacity_bytes

    def why_hopeless(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point is not worth a trial; a prediction that runs contradict does not count."""
        if not self.is_measured(params):
            return why_surely_too_large(self.subject, params)
        if self.is_vague(params):
            return None
        needed, limit = self.needed(params), self.capacity_bytes
        factor = UNSURE if self.subject.recomputes_at(params) in self._sloped else REFUTED
        if needed > factor * limit and (reason := why_surely_too_large(self.subject, params)) is not None:
            return reason
        return self.why_not(params) if needed > HOPELESS * limit else None

    def is_vague(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a run peaked below its predicted states, so that only two runs can measure activations."""
        return self.subject.recomputes_at(params) in self._vague

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a run with the point's recomputation mode has been measured."""
        return self.subject.recomputes_at(params) in self._measured

    def activations(self, params: Mapping[str, Value]) -> float:
        """Return the activations of a point: measured and scaled to its micro-batch, or the planner's figure."""
        known = self._measured.get(self.subject.recomputes_at(params))
        return known[1] * int(params["mbs"]) if known else self.subject.planned_activations(params)

    def needed(self, params: Mapping[str, Value]) -> float:
        """Return the bytes that a point needs."""
        return self._share * self.subject.states(params).total + self.activations(params)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches that fits; None where none does."""
        return max((mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None), default=None)

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point does not fit, or None."""
        origin = "measured and scaled to" if self.is_measured(params) else "planned as"
        return why_too_large(self.subject, params, self.activations(params), origin, self._share)


class MeasuredMemory:
    """Measured memory of an unknown model: a line over the micro-batch for each stage.

    Legend: m micro-batch, a constant bytes of a stage, b bytes per sample. A run takes a + b m. Two runs at one stage
    give b, which is the same at every stage; a further stage gives its own a by one run.
    """

    def __init__(self) -> None:
        self._peaks: dict[Point, dict[int, int]] = {}
        self._failed: list[Mapping[str, Value]] = []
        self._reported = math.inf

    def observe(self, trial: Trial) -> None:
        """Learn from a run that reported its peak memory, or that ran out of it."""
        if trial.ok and trial.peak_memory_bytes:
            self._peaks.setdefault(_without_mbs(trial.params), {})[int(trial.params["mbs"])] = trial.peak_memory_bytes
        elif trial.outcome is Outcome.OOM:
            self._failed.append(trial.params)
            self._reported = min(self._reported, FailedAllocation.of(trial.cause).capacity_bytes or math.inf)

    @property
    def capacity_bytes(self) -> float:
        """Memory that no run can have: the least need of a failed run, or the capacity that one reported."""
        return min([self._reported, *(self.needed(params) for params in self._failed if self.is_measured(params))])

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        return _without_mbs(params) in self._peaks and self._per_sample(params) is not None

    def is_vague(self, params: Mapping[str, Value]) -> bool:
        """Tell that no run contradicts the prediction: without a model there is none."""
        return False

    def needed(self, params: Mapping[str, Value]) -> float:
        peaks, per_sample = self._peaks.get(_without_mbs(params)), self._per_sample(params)
        if not peaks or per_sample is None:
            return 0.0
        known = max(peaks)
        return peaks[known] + per_sample * (int(params["mbs"]) - known)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches that needs less than what failed; None where nothing is known."""
        if not self.is_measured(params) or math.isinf(self.capacity_bytes):
            return None
        return max((mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None), default=None)

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        needed, capacity = self.needed(params), self.capacity_bytes
        if needed < capacity:
            return None
        line = f"{format_bytes(self._per_sample(params) or 0.0)} a sample, as measured"
        return f"needs {format_bytes(needed)}, and {format_bytes(capacity)} are not there ({line})"

    def _per_sample(self, params: Mapping[str, Value]) -> float | None:
        """Return the bytes per sample: at the same stage, or at another one with the same recomputation."""
        own = _slope(self._peaks.get(_without_mbs(params), {}))
        if own is not None:
            return own
        recomputes = bool(params.get(CHECKPOINTING))
        alike = (peaks for other, peaks in self._peaks.items() if bool(dict(other).get(CHECKPOINTING)) == recomputes)
        return max((slope for peaks in alike if (slope := _slope(peaks)) is not None), default=None)


Point = tuple[tuple[str, Value], ...]


def _without_mbs(params: Mapping[str, Value]) -> Point:
    return tuple((name, value) for name, value in params.items() if name != "mbs")


def _slope(peaks: Mapping[int, int]) -> float | None:
    """Return the bytes that one more sample takes, from the two largest micro-batches; None of fewer than two."""
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = sorted(peaks.items())[-2:]
    return max((high - low) / (large - small), 0.0)
