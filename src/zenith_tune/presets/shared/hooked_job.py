"""A job of a Trainer that a script makes, as its run showed it: what is searched of it, and its levers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from zenith_tune.evaluators.hooked_run import PLAIN, WRAPPER_NAMES, HookedRun
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, JobFacts
from zenith_tune.presets.arguments import FrameworkArguments, searched_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import ASSUMED, LeverDeclaration, LeverPoint, set_levers
from zenith_tune.study.parameters import Params, Value
from zenith_tune.units import count

MBS, RECOMPUTE = "mbs", "checkpointing"
AMPERE = 80
"""The compute capability, times ten, from which tf32, bf16 and FlashAttention run."""


@dataclass(frozen=True, kw_only=True)
class HookedArguments(FrameworkArguments):
    """What presets of Trainers take."""

    seq: int | None = None
    """Tokens of a sample, where the run does not show them."""
    steps: int = 20
    check: bool = True
    """Whether a trial that ran as something else than was asked for has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedJob(ABC):
    """A job; before a run of it only what its text says is known."""

    num_processes: int = 1
    wrapper: str | None = None
    """What it trained in, where that is one that is known."""
    samples: int | None = None
    """Of an update, as it was seen."""
    precision: str = "fp32"
    seq_len: int | None = None
    gpu: str | None = None
    new_shapes: float = 0.0
    """Share of updates of a length of their own, as it was seen; the first micro-batch of a shape is slow."""

    @property
    @abstractmethod
    def is_known(self) -> bool:
        """Whether what the script sets is known."""

    @property
    @abstractmethod
    def micro_batch(self) -> int:
        """Samples of a pass of one rank."""

    @property
    @abstractmethod
    def accumulation(self) -> int:
        """Passes of an update."""

    @property
    @abstractmethod
    def compute(self) -> int:
        """The GPU's compute capability times ten; 0 without a GPU, or before the first run."""

    @property
    @abstractmethod
    def packages(self) -> Collection[str] | None:
        """Optional packages of its interpreter; None where they are not known."""

    @abstractmethod
    def lacks(self, settings: Mapping[str, Value]) -> bool:
        """Return whether settings can be made that it does not have yet; the first decides whether it has them."""

    @property
    def can_resize(self) -> bool:
        """Whether trials may change the micro-batch."""
        return True

    def can_train(self, micro_batch: int) -> bool:
        """Return whether trials may have a micro-batch that divides the global batch."""
        return True

    @property
    def counts_passes(self) -> bool:
        """Whether an update makes as many passes as its settings say."""
        return True

    @property
    def is_fp32(self) -> bool:
        return self.precision == "fp32"

    @property
    def is_plain(self) -> bool:
        """Whether ranks hold the whole model, as layouts are planned."""
        return self.wrapper in (None, PLAIN)

    @property
    def global_batch(self) -> int:
        """Samples of an update, which no trial changes."""
        return self.micro_batch * self.accumulation * self.num_processes

    def batch_note(self, kind: str) -> str:
        batch = f"micro-batch {self.micro_batch}, {self.accumulation} accumulated, {count(self.num_processes, 'rank')}"
        return f"{kind}: global batch {self.global_batch} ({batch}), which every trial keeps"

    def seen(self, run: HookedRun, **values: Any) -> Self:
        wrapper = str(run.reports[0].get("wrapper")) if run.reports else None
        return replace(
            self,
            wrapper=wrapper if wrapper in WRAPPER_NAMES else None,
            samples=run.samples,
            precision=run.precision if run.precision in ("bf16", "fp16", "fp8") else "fp32",
            gpu=run.gpu,
            **values,
        )


J = TypeVar("J", bound=HookedJob)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedLever(LeverDeclaration[LeverPoint[J]], Generic[J]):
    """A lever that the hook or the command sets."""

    sets: Mapping[str, Value] = field(default_factory=dict)
    """Settings; the first decides whether the job has it already."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment, which the command must not have yet."""
    least_compute: int = 0
    """The compute capability, times ten, that it needs."""

    def is_for(self, at: LeverPoint[J]) -> bool:
        has_it = not at.job.lacks(self.sets) if self.sets else bool(self.variables.keys() & at.variables.keys())
        return not has_it and at.job.compute >= self.least_compute and self.goes(at)


ENVIRONMENT_LEVERS: tuple[HookedLever[Any], ...] = (
    HookedLever(
        name="allocator",
        value="expandable",
        variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        least_compute=70,
        goes=lambda at: "PYTORCH_ALLOC_CONF" not in at.variables,
        memory=-0.1,
        source=f"{ASSUMED}: blocks that grow; on an H200 batches of many lengths used 31 of 46 GiB reserved (2026-11)",
    ),
)


def precision_levers(tf32: Mapping[str, Value], bf16: Mapping[str, Value]) -> tuple[HookedLever[Any], ...]:
    """Return the levers of a job in single precision, by what a framework calls them."""
    return (
        HookedLever(
            name="tf32",
            sets=tf32,
            least_compute=AMPERE,
            goes=lambda at: at.job.is_fp32,
            saves={"compute": 0.6},
            numerics=True,
            source=f"{ASSUMED}: matrix products with 10 bits of mantissa, at several times the rate",
        ),
        HookedLever(
            name="bf16",
            sets=bf16,
            least_compute=AMPERE,
            goes=lambda at: at.job.is_fp32,
            saves={"compute": 0.7},
            memory=-0.2,
            excludes=frozenset({"tf32"}),
            numerics=True,
            source=f"{ASSUMED}: Micikevicius et al. 2017 (arXiv 1710.03740), with bfloat16",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A way to shard the state of a model over ranks."""

    name: str
    zero: int
    """What is sharded, as the stages of ZeRO number it."""
    wrapper: str = PLAIN
    arguments: Mapping[str, Value] = field(default_factory=dict)
    """What turns it on."""
    settings: Mapping[str, Value] = field(default_factory=dict)
    """What a run says of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedSpace(AxisSpace, ABC, Generic[J]):
    """The axes of a job: the micro-batch, how it is sharded, and what its framework adds."""

    sharding_axis: ClassVar[str]
    shardings: ClassVar[Mapping[str, Sharding]]
    """By name; the first is plain data parallelism."""
    job: J

    @classmethod
    @abstractmethod
    def choices(cls, job: J) -> Mapping[str, tuple[Value, ...]]:
        """Return the axes besides the micro-batch, each with the job's own value first."""

    @classmethod
    @abstractmethod
    def on_request(cls, job: J) -> Collection[str]:
        """Return the axes that are searched only where they are named."""

    @classmethod
    def of(cls, job: J, search: str, mbs_max: int) -> Self:
        """Return the axes that `search` names; the others stay as they are."""
        own = job.micro_batch
        sizes = divisors(job.global_batch // job.num_processes) if job.can_resize else [own]
        others = (size for size in sizes if size <= mbs_max and size != own and job.can_train(size))
        choices = {MBS: (own, *others), **cls.choices(job)}
        axes = searched_axes(search, choices, cls.on_request(job))
        if len(axes[cls.sharding_axis]) < 2:
            del axes[cls.sharding_axis]
        return cls(job=job, axes=axes)

    def near_points(self) -> Iterator[Params]:
        """Yield the job as it is: what the levers need is the same at any point."""
        yield self.first_point

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        return BATCH.reason(JobFacts(), self.layout(params))

    def layout(self, params: Mapping[str, Value]) -> Layout:
        recomputes = bool(params.get(RECOMPUTE))
        return Layout(
            num_gpus=self.job.num_processes,
            micro_batch=int(params[MBS]),
            global_batch=self.job.global_batch,
            zero=self.sharding(params).zero,
            recompute="full/uniform" if recomputes else "none",
            recompute_layers=int(recomputes),
        )

    def sharding(self, params: Mapping[str, Value]) -> Sharding:
        return self.shardings[str(params.get(self.sharding_axis, next(iter(self.shardings))))]

    def batch(self, params: Mapping[str, Value]) -> tuple[int, int]:
        """Return the micro-batch and the passes of an update, so that the global batch stays what it is."""
        size = int(params[MBS])
        return size, max(self.job.global_batch // (size * self.job.num_processes), 1)

    def takes_no_less(self, params: Mapping[str, Value], than: Mapping[str, Value]) -> bool:
        """Return whether a point takes as much memory as another of no larger a micro-batch, by all that it saves."""
        keeps_as_much = bool(params.get(RECOMPUTE)) <= bool(than.get(RECOMPUTE))
        own, other = self.sharding(params), self.sharding(than)
        return keeps_as_much and own.zero <= other.zero and own.wrapper in (PLAIN, other.wrapper)

    def words(self, params: Mapping[str, Value]) -> list[str]:
        """Return what a table's cell says of a point, without its levers."""
        words = [f"mbs{params[MBS]}"]
        if len(self.axes.get(RECOMPUTE, ())) > 1:
            words.append("checkpointing" if params[RECOMPUTE] else "no-checkpointing")
        if self.sharding_axis in self.axes:
            words.append(self.sharding(params).name if self.sharding(params).zero else "ddp")
        return words

    def lever_values(self, declared: Sequence[HookedLever[J]], params: Mapping[str, Value]) -> dict[str, Value]:
        on = set_levers(declared, self.levers_of(params))
        return {name: value for lever in on for name, value in lever.sets.items()}
