"""The result of planning: ranked layouts, what was dropped and why, and near misses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.axes import Cut
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.notebook import data_frame, html_table
from zenith_tune.planner.cost import PER_TOKENS, Prices, TrainingCost, training_cost
from zenith_tune.planner.training_way import LORA_RANK
from zenith_tune.units import GIB, count, format_bytes, format_seconds

if TYPE_CHECKING:
    import pandas as pd

PRESSURE = "memory"
"""The part of a step that is lost when memory is nearly full."""
CAUSES = {
    "compute": "compute",
    "recompute": "memory (recompute)",
    "tp": "TP",
    "cp": "CP",
    "ep": "EP",
    "bubble": "PP bubble",
    "p2p": "PP p2p",
    "dp": "DP",
    "reference": "reference model",
    "optimizer": "optimizer",
    "overhead": "overhead",
    PRESSURE: "memory (nearly full)",
}
"""Display names of the parts of a step; recomputation is time paid for memory."""
SHORT = {"reference": "reference", "recompute": "recompute", "bubble": "bubble", PRESSURE: "full memory"}
"""Short display names, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """A layout and its estimate."""

    layout: Layout
    step_s: float
    expected_s: float
    """Mean step time over the errors of memory, with a penalty for a crash; layouts are ranked by it."""
    step_interval_s: tuple[float, float]
    """90% interval of the step time."""
    time_parts: dict[str, float]
    memory_bytes: float
    memory_interval_bytes: tuple[float, float]
    """90% interval of the peak memory."""
    balanced_bytes: float | None
    """Peak memory with balanced routing; None where the figures already assume it."""
    busiest_load: float
    """Expected tokens on the busiest expert-parallel rank of a layer over the mean; 1 with balanced routing."""
    memory_parts: dict[str, float]
    capacity_bytes: float
    oom_probability: float
    tokens_per_s: float
    mfu: float
    """Model FLOPs per second over the peak of all GPUs."""

    def __repr__(self) -> str:
        return f"PlannedLayout({self.name}: {self.figures})"

    def _repr_html_(self) -> str:
        step = [(CAUSES.get(name, name), part) for name, part in self.time_parts.items() if part]
        memory = [(name, part) for name, part in self.memory_parts.items() if part]
        shares = [[name, format_seconds(part), f"{part / self.step_s:.0%}"] for name, part in _largest_first(step)]
        sizes = [[name, format_bytes(part), f"{part / self.memory_bytes:.0%}"] for name, part in _largest_first(memory)]
        times = html_table(("part of a step", "time", "share"), shares, caption=f"{self.name}: {self.figures}")
        return times + html_table(("part of the memory", "size", "share"), sizes)

    def row(self) -> dict[str, Any]:
        """Return its sizes and figures as one row of a table."""
        low_s, high_s = self.step_interval_s
        low_bytes, high_bytes = self.memory_interval_bytes
        return {
            "name": self.name,
            **asdict(self.layout),
            "dp": self.layout.dp,
            "num_micro_batches": self.layout.num_micro_batches,
            "step_s": self.step_s,
            "step_low_s": low_s,
            "step_high_s": high_s,
            "expected_step_s": self.expected_s,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "memory_bytes": self.memory_bytes,
            "memory_low_bytes": low_bytes,
            "memory_high_bytes": high_bytes,
            "headroom_bytes": self.headroom_bytes,
            "oom_probability": self.oom_probability,
            "bound": self.bound,
            **{f"{name}_s": part for name, part in self.time_parts.items()},
            **{f"{name}_bytes": part for name, part in self.memory_parts.items()},
        }

    @property
    def figures(self) -> str:
        """Speed, memory and risk, in half a line."""
        speed = f"{format_seconds(self.step_s)} a step, {self.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
        return f"{speed}, MFU {self.mfu:.1%}, {self.memory}, {self.oom_probability:.0%} OOM"

    @property
    def memory(self) -> str:
        """The memory that it needs, and that of a GPU."""
        return f"{self.memory_bytes / GIB:.1f} of {format_bytes(self.capacity_bytes)}"

    @property
    def name(self) -> str:
        return layout_name(self.layout)

    @property
    def roomy_s(self) -> float:
        """Step time with memory to spare, without the allocator's losses when it is nearly full."""
        return self.step_s - self.time_parts.get(PRESSURE, 0.0)

    def cost(self, gpu: str, tokens: float | str | None = None, price: Prices = None) -> TrainingCost:
        """Return what a training of so many tokens takes, or one of a billion, on GPUs of a kind."""
        low, high = self.step_interval_s
        return training_cost(
            PER_TOKENS if tokens is None else tokens,
            price,
            gpu=gpu,
            num_gpus=self.layout.num_gpus,
            tokens_per_s=self.tokens_per_s,
            relative_interval=(low / self.step_s, high / self.step_s),
        )

    def with_room(self) -> PlannedLayout:
        """Return the layout as it would run on a GPU with memory to spare."""
        factor = self.roomy_s / self.step_s
        low, high = self.step_interval_s
        return replace(
            self,
            step_s=self.roomy_s,
            expected_s=self.roomy_s,
            step_interval_s=(low * factor, high * factor),
            time_parts={name: part for name, part in self.time_parts.items() if name != PRESSURE},
            tokens_per_s=self.tokens_per_s / factor,
            mfu=self.mfu / factor,
        )

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.layout.num_gpus

    @property
    def headroom_bytes(self) -> float:
        """Memory left on the fullest GPU; negative where it is exceeded."""
        return self.capacity_bytes - self.memory_bytes

    @property
    def bound(self) -> str:
        """The largest part of a step, and the second largest where the first is compute itself."""
        parts = sorted(self.time_parts.items(), key=lambda part: -part[1])
        names = [(SHORT.get(name, CAUSES.get(name, name)), seconds) for name, seconds in parts if seconds > 0]
        shown = [f"{name} {seconds / self.step_s:.0%}" for name, seconds in names]
        return ", ".join(shown[: 2 if names and names[0][0] == "compute" else 1])


def _largest_first(parts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    return sorted(parts, key=lambda part: -part[1])


class Obstacle(StrEnum):
    """The obstacle that keeps a faster layout from being chosen."""

    MEMORY = "memory"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A layout that would be faster than the best, and why it is not chosen."""

    planned: PlannedLayout
    obstacle: Obstacle
    gain: float
    """Gain in speed over the best layout, as a fraction; infinite where nothing fits."""
    reason: str
    hint: str


DISPATCH = {
    "alltoall": "experts exchange tokens by a plain all-to-all that nothing hides; where it is overlapped with work "
    "or fused (DeepEP), as in NVIDIA's recipes, plan with --dispatcher flex",
    "flex": "experts exchange tokens by fused kernels (DeepEP), or by an all-to-all that is overlapped with computing",
}
"""Assumption about each dispatcher."""
UNEVEN = "loads of experts have a standard deviation of {:.0%} of their mean, and layers wait for the busiest rank"
"""Assumption about the routing of tokens."""
TRACED = (
    "the module's blocks are whole on every GPU (no tensor, pipeline, context or expert parallelism: only a config "
    "names what they would split), and take the time of their parameters' products"
)
"""Assumption about a model whose blocks were traced, not described by a config."""
HOST = "the host updates the weights of a node's GPUs in 1.5 s per billion, which may be half or twice as much"
"""Assumption about an optimizer in the host's memory."""
ADAPTED = "adapters of rank {} on all matrices of dense layers"
"""Assumption about LoRA and QLoRA."""
UNPACKED = "; the time to unpack weights of 4 bits is not counted"
REFERENCE = "the reference model runs forward on every sequence, and the batch counts sequences: a pair of DPO is two"
"""Assumption about a frozen copy; adapters that are switched off need none."""
NARROW = {
    True: "in {} inputs of products are kept in 8 bits and gradients in fp32; weights are kept as --fp8-param-gather "
    "does with fp8, else in bf16 with cached copies of 2 bytes a parameter",
    False: "memory with {} is counted as that of bf16",
}
"""Assumption below 16 bits, by whether the framework keeps its activations in 8 bits."""
WIDE = ("bf16", "fp16", "fp32")
"""Precisions in which activations are kept as they are counted."""
COLUMNS = ("", "layout", "step", "step, risk counted", "tok/s/GPU", "MFU", "memory", "OOM", "bound by")
"""Columns of the table in a notebook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The layouts of one job, the best first; of those that tie, the simplest."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    global_batch: int
    risk: float
    """The probability of running out of memory below which a layout counts as fitting."""
    best: tuple[PlannedLayout, ...]
    num_tied: int
    """Number of layouts at the head that tie with the fastest."""
    tied_within: float
    """The relative difference of two steps below which they tie."""
    level: str
    """Who measured this kind of machine."""
    near_misses: tuple[NearMiss, ...]
    front: tuple[PlannedLayout, ...]
    """Layouts that no other beats in both time and memory, the fastest first."""
    num_considered: int
    num_not_fitting: int
    cuts: tuple[Cut, ...]
    left_out: tuple[str, ...]
    """Choices that were not tried, with the reason."""

    def __repr__(self) -> str:
        best = f"best {self.best[0].name}, {format_seconds(self.best[0].step_s)} a step" if self.best else "none fits"
        return f"Plan({self._title}: {best}; {self.num_fitting:,} of {count(self.num_considered, 'layout')} fit)"

    def _repr_html_(self) -> str:
        rows = [
            [
                str(rank),
                each.name,
                format_seconds(each.step_s),
                format_seconds(each.expected_s),
                f"{each.tokens_per_s_per_gpu:,.0f}",
                f"{each.mfu:.1%}",
                format_bytes(each.memory_bytes),
                f"{each.oom_probability:.0%}",
                each.bound,
            ]
            for rank, each in enumerate(self.best, 1)
        ]
        return html_table(COLUMNS, rows, caption=f"{self._title}, {self.num_fitting:,} of {self.num_considered:,} fit")

    def to_dataframe(self) -> pd.DataFrame:
        """Return the layouts with their sizes and figures, a row each and the best first; needs pandas."""
        return data_frame([planned.row() for planned in self.best])

    @property
    def _title(self) -> str:
        return f"{self.model.name} on {self.cluster.name}, gbs {self.global_batch}, seq {self.job.seq_len}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions behind the figures that may differ from the command."""
        found = [f"step times {self.level}"]
        if self.model.num_experts and any(planned.layout.ep > 1 for planned in self.best):
            found.append(DISPATCH[self.job.dispatcher])
        if self.job.imbalance and any(planned.busiest_load > 1 for planned in self.best):
            found.append(f"{UNEVEN.format(self.job.imbalance)} (--imbalance)")
        if self.model.traced is not None:
            found.append(TRACED)
        if self.job.framework.host_bytes:
            found.append(HOST)
        if self.job.way:
            found.append(f"{self.job.way} as {self.job.framework.name} runs it; --framework takes another")
        if "LoRA" in self.job.way:
            found.append(ADAPTED.format(LORA_RANK) + UNPACKED * ("QLoRA" in self.job.way))
        if self.job.reference:
            found.append(REFERENCE)
        if self.job.precision not in WIDE:
            found.append(NARROW[bool(self.job.framework.narrow_input_bytes)].format(self.job.precision))
        return tuple(found)

    @property
    def num_fitting(self) -> int:
        return self.num_considered - self.num_not_fitting

    def cost(self, tokens: float | str | None = None, *, price: Prices = None) -> TrainingCost | None:
        """Return what a training of so many tokens takes with the best layout; None where nothing fits.

        `price` is that of a GPU-hour, by default a public one; without tokens it is what a billion of them take.
        """
        return self.best[0].cost(self.cluster.gpu.name, tokens, price) if self.best else None


SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero")


def changes(old: Layout, new: Layout) -> str:
    """Return what changes from one layout to another."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in (*SIZES, "schedule")]
    pairs += [("mbs", old.micro_batch, new.micro_batch), ("gbs", old.global_batch, new.global_batch)]
    pairs += [("recompute", _recompute(old), _recompute(new))]
    pairs += [("sp", _switch(old.sequence_parallel), _switch(new.sequence_parallel))]
    pairs += [("flash", _switch(old.flash_attention), _switch(new.flash_attention))]
    return ", ".join(f"{name} {a} -> {b}" for name, a, b in pairs if a != b) or "nothing"


def _recompute(layout: Layout) -> str:
    return layout.recompute + (str(layout.recompute_layers) if layout.recompute_layers else "")


def _switch(on: bool) -> str:
    return "on" if on else "off"


LEAST_SAVING = 0.1
"""The least memory that a slower layout of a front must save, as a fraction."""
MAX_HALVINGS = 3


def halvings(num_gpus: int) -> list[int]:
    """Return a number of GPUs and its halves, down to an eighth."""
    sizes = [num_gpus]
    while sizes[-1] % 2 == 0 and len(sizes) <= MAX_HALVINGS:
        sizes.append(sizes[-1] // 2)
    return sizes


def thinned(front: Iterable[PlannedLayout]) -> list[PlannedLayout]:
    """Return the fastest of a front, and those that save much memory over the one before."""
    kept: list[PlannedLayout] = []
    for point in sorted(front, key=lambda point: point.step_s):
        if not kept or point.memory_bytes <= (1 - LEAST_SAVING) * kept[-1].memory_bytes:
            kept.append(point)
    return kept


def unbeaten(points: list[PlannedLayout]) -> list[PlannedLayout]:
    """Return the points that no other beats, in their order."""
    return [point for point in points if not any(beats(other, point) for other in points)]


def beats(one: PlannedLayout, other: PlannedLayout) -> bool:
    """Tell whether one layout is no worse in time, memory and GPUs, and better in one of them."""
    a = (one.step_s, one.memory_bytes, one.layout.num_gpus)
    b = (other.step_s, other.memory_bytes, other.layout.num_gpus)
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
