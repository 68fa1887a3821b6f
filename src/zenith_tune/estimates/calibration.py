"""A calibration: the coefficients of a framework, fitted to measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import Self

import numpy as np

from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.units import GIB, MIB

SHARES = ("_efficiency", "_exposed", "_overlap")
"""Endings of the coefficients that are at most 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCoefficients:
    """Speed of a framework on a kind of GPU; the defaults are those of a well-tuned Megatron on H100."""

    gemm_efficiency: float = 0.72
    """Share of the matrix peak that large matrix products reach."""
    attention_efficiency: float = 0.45
    """Share of the bf16 matrix peak that the attention kernel reaches."""
    memory_efficiency: float = 0.75
    """Share of the memory bandwidth that norms, activations and reading weights reach."""
    hidden_passes: float = 30.0
    """Bytes per token and hidden unit that one layer moves, forward and backward, besides its matrix products."""
    query_passes: float = 0.0
    """Bytes moved per token and unit of queries and keys, where a fused kernel does not rotate and norm them."""
    ffn_passes: float = 16.0
    """Bytes moved per token and unit of the feed-forward width."""
    score_passes: float = 20.0
    """Bytes moved per attention score without a fused kernel, forward and backward (Korthikanti et al. 2022, 4.1)."""
    logit_passes: float = 24.0
    """Bytes moved per logit, forward and backward."""
    layer_launch_s: float = 1.0e-3
    """Least time of the host per layer and micro-batch, forward and backward."""
    launch_again: float = 0.6
    """Share of the host's time that recomputing a layer adds."""
    launch_selected: float = 0.0
    """Share of the host's time that selective recomputation adds."""
    tensor_launch_s: float = 1.0e-4
    """Host time per layer that launching tensor-parallel collectives adds."""
    shard_launch_s: float = 0.0
    """Host time per layer that gathering and freeing sharded weights adds."""
    expert_launch_s: float = 1.0e-3
    """Host time per layer with experts that they add."""
    expert_product_s: float = 1.0e-4
    """Host time that the products of each expert of a rank add."""
    expert_passes: float = 30.0
    """Bytes per routed token and hidden unit that sorting tokens by expert and back moves, forward and backward."""
    expert_efficiency: float = 0.9
    """Share of gemm_efficiency that the grouped products of experts reach."""
    expert_narrowness: float = 512.0
    """Width of an expert's share at which its products reach half of expert_efficiency."""
    fast_efficiency: float = 0.7
    """Share of the link inside a fast domain that collectives reach."""
    slow_efficiency: float = 0.6
    """Share of the network that collectives reach."""
    tensor_exposed: float = 0.8
    """Share of the tensor-parallel traffic that no computation hides."""
    expert_exposed: float = 0.8
    """Share of the all-to-all traffic of experts that no computation hides."""
    network_wait_s: float = 2.0e-5
    """Wait per tensor-parallel rank and layer where the group leaves its fast domain."""
    stage_wait_s: float = 1.0e-5
    """Wait per tensor-parallel rank and layer in a pipeline that spans nodes."""
    data_overlap: float = 0.7
    """Share of one backward pass behind which the reduction of gradients hides."""
    data_decay: float = 0.15
    """Exponent of the falling bandwidth of data-parallel collectives as nodes are added."""
    shard_penalty: float = 1.0
    """Exposed traffic of a sharded optimizer over that of a plain all-reduce."""
    optimizer_passes: float = 30.0
    """Bytes moved per parameter that a rank updates."""
    step_overhead_s: float = 5.0e-3
    """Time per step for data, logging and clipping."""
    shape_s: float = 0.15
    """What the host takes for the first micro-batch of each shape (benchmarks/results/h200-loops-2026-11-17.csv)."""
    handover_exposed: float = 0.3
    """Share of the messages between the chunks of an interleaved pipeline that no computation hides."""
    handover_wait_s: float = 0.0
    """Wait of a stage for each message of its neighbours where the network waits."""
    thrash: float = 4.0
    """Slowdown of a step once memory is almost full and the allocator keeps freeing and claiming blocks."""

    def to_vector(self, names: tuple[str, ...]) -> FloatArray:
        return np.log([max(getattr(self, name), 1e-12) for name in names])

    def with_vector(self, names: tuple[str, ...], vector: FloatArray) -> Self:
        """Return a copy with the named coefficients set from their logarithms: numbers, or columns of many."""
        most = np.array([1.0 if name.endswith(SHARES) else np.inf for name in names])
        values = np.minimum(np.exp(vector).T, most).T
        return replace(self, **dict(zip(names, values if values.ndim > 1 else values.tolist(), strict=True)))


NUM_QUANTILES = 20


def even_quantiles(spread: float) -> tuple[float, ...]:
    """Return the quantiles of a normal distribution of this standard deviation, evenly spaced in probability."""
    normal = NormalDist(0.0, spread)
    return tuple(normal.inv_cdf((i + 0.5) / NUM_QUANTILES) for i in range(NUM_QUANTILES))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """Memory of one framework."""

    activations: float = 1.0
    """Measured over accounted activations."""
    logits: float = 1.0
    fixed_bytes: float = 70.0 * MIB
    """Workspaces of the matrix library and small buffers, inside the allocator."""
    reserve: float = 0.05
    """The allocator's reserve beyond the peak, as a share of activations and temporaries."""
    context_bytes: float = 2.0 * GIB
    """CUDA context and communication buffers, outside the allocator."""
    log_middle: float = 0.0
    """Logarithm of the typical measured over accounted memory; the estimate is the account times its exponential."""
    variant_share: float = 0.0
    """Share of runs of the framework's variant, where it has one."""
    log_errors: tuple[float, ...] = even_quantiles(0.06)
    """Quantiles of the logarithm of measured over estimated, evenly spaced in probability."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 90% interval of the logarithm of measured over estimated."""
        return self._error(0.05), self._error(0.95)

    @property
    def log_spread(self) -> float:
        """Standard deviation of the logarithm of measured over estimated, from the middle of its quantiles."""
        return (self._error(0.84) - self._error(0.16)) / 2.0

    def _error(self, level: float) -> float:
        levels = (np.arange(len(self.log_errors)) + 0.5) / len(self.log_errors)
        return float(np.interp(level, levels, self.log_errors))


SIMILAR_GPU = {
    "h200": "h100",
    "h20": "h100",
    "gh200": "h100",
    "h100-96": "h100",
    "a800": "a100-80",
    "a100-40": "a100-80",
    "b300": "b200",
    "gb200": "b200",
    "gb300": "gb200",
}
"""The measured GPU whose coefficients are used for one that was never measured."""


ERROR_SOURCES = {"host": 0.35, "messages": 0.2, "experts": 0.1}
"""Sources of error besides the GPU's own work, with the standard deviation of the logarithm where no run shows it."""

SOURCE_SDS = {"work": 0.12, "host": 0.43, "messages": 0.43, "experts": 0.18}
"""Standard deviation of the level of a source (a machine with its software) that the GPU's own work and each of
ERROR_SOURCES add."""
TO_90 = 1.645
"""Half of the 90% interval of a normal distribution, in standard deviations."""
UNMEASURED = 6.0
"""How many times further off the level of a framework is that no source measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCalibration:
    """Time coefficients of a family of frameworks, with their factors for each kind of run."""

    coefficients: TimeCoefficients = field(default_factory=TimeCoefficients)
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Factor of each coefficient by kind of run, such as gpu:h100, precision:fp8 or framework:megascale."""
    trends: Mapping[str, float] = field(default_factory=dict)
    """Logarithmic change of a coefficient per year of a framework's release."""
    release: float = 2026.0
    """The release, as a year, at which trends are zero."""
    interval: tuple[float, float] = (-0.25, 0.25)
    """90% interval of the logarithm of measured over estimated step time, for the GPU's own work alone."""
    error_sds: Mapping[str, float] = field(default_factory=lambda: dict(ERROR_SOURCES))
    """Standard deviation that each of ERROR_SOURCES adds, in proportion to its share of the step."""
    sources: Mapping[str, int] = field(default_factory=dict)
    """Number of sources by GPU; none for a framework that nobody measured."""
    num_own: int = 0
    """Number of the user's own runs that it was refined by."""
    source_sds: Mapping[str, float] = field(default_factory=lambda: dict(SOURCE_SDS))
    """Standard deviation of a source's level that the GPU's own work and each of ERROR_SOURCES add."""

    @property
    def spread(self) -> float:
        """Standard deviation of a normal distribution with the same interval."""
        return (self.interval[1] - self.interval[0]) / (2 * TO_90)

    def widening(self, shares: FloatArray) -> FloatArray:
        """Return how many times wider the interval is where ERROR_SOURCES decide these shares of a step."""
        sds = np.array([self.error_sds[name] for name in ERROR_SOURCES])
        result: FloatArray = np.sqrt(1 + ((sds[:, None] * shares) ** 2).sum(axis=0) / self.spread**2)
        return result

    def ends(self, wider: float, level_sd: float) -> tuple[float, float]:
        """Return the interval of a step that is `wider` times less known, on a machine whose level is."""
        low, high = (math.copysign(math.hypot(end * wider, level_sd * TO_90), end) for end in self.interval)
        return low, high

    def num_sources(self, gpu: str) -> int:
        """Return how many sources measured a GPU, or the most similar one."""
        while gpu not in self.sources and gpu in SIMILAR_GPU:
            gpu = SIMILAR_GPU[gpu]
        return self.sources.get(gpu, 0)

    def level_sd(self, shares: FloatArray, gpu: str) -> FloatArray:
        """Return the standard deviation of the error that all step times on a machine have in common.

        It is that of a new member among as many sources as were measured, and shrinks with the user's own runs by the
        normal update of a mean.
        """
        sds = np.array([self.source_sds[name] for name in ("work", *ERROR_SOURCES)])
        between = sds[0] ** 2 + ((sds[1:, None] * shares) ** 2).sum(axis=0)
        variance = between * (1 + 1 / max(self.num_sources(gpu), 1)) * (1 if self.sources else UNMEASURED**2)
        result: FloatArray = np.sqrt(variance / (1 + self.num_own * variance / self.spread**2))
        return result

    def coefficients_for(
        self, *, gpu: str, precision: str, framework: str, release: float | None = None
    ) -> TimeCoefficients:
        while f"gpu:{gpu}" not in self.factors and gpu in SIMILAR_GPU:
            gpu = SIMILAR_GPU[gpu]
        names = (f"gpu:{gpu}", f"precision:{precision_class(precision)}", f"framework:{framework}")
        values = asdict(self.coefficients)
        for name in names:
            for coefficient, factor in self.factors.get(name, {}).items():
                values[coefficient] *= factor
        years = 0.0 if release is None else release - self.release
        for coefficient, slope in self.trends.items():
            values[coefficient] *= math.exp(slope * years)
        return replace(self.coefficients, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The coefficients of one framework, with sensible defaults."""

    framework: str = "megatron"
    time: TimeCalibration = field(default_factory=TimeCalibration)
    memory: MemoryCoefficients = field(default_factory=MemoryCoefficients)
    origin: str = "defaults, not fitted"
    """The data that the coefficients were fitted to."""
    date: str = ""
    """Date of the fit, as YYYY-MM-DD."""
    num_runs: int = 0
    num_memory_runs: int = 0
    """Number of measured runs that memory was fitted to; 0 where it is not fitted."""
