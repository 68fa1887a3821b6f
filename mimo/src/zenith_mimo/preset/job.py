"""What a command that trains an encoder and a language model says of itself, in whichever dialect."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zenith_mimo.planning.candidate import MAX_TP, MimoCandidate, micro_batches, why_not
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.planning.prediction import (
    MimoPlan,
    MimoPrediction,
    better_batch,
    peak_memory_bytes,
    plan_mimo,
    predict,
)
from zenith_tune.errors import UsageError
from zenith_tune.presets.arguments import sizes_of
from zenith_tune.study.parameters import BoolParameter, CategoricalParameter, Parameter, Params, Value

PRESET = "preset mimo"
MOST = 1_000_000
MOST_RANKS = 4096
"""More ranks than that have more layouts than can be planned quickly."""
MOST_RANKS_FOR_BATCHES = 32
"""Up to here other batches are planned too."""


MODULE_SIZES = [f"{module}-{what}" for module in ("encoder", "llm") for what in ("layers", "hidden", "heads")]
ARGUMENT = {
    **{name: name.replace("-", "_") for name in (*MODULE_SIZES, "seq-length", "vocab-size")},
    "patches": "encoder_patches",
}
"""The arguments that stand for options which a command does not have."""
PATCH_SIZE = 588


@dataclass(frozen=True, kw_only=True)
class MimoArguments:
    """What preset mimo takes; None leaves a value to the command."""

    n_gpus: int | None = None
    cluster: str | None = None
    device_flops: float | None = None
    cores: int | None = None
    """Cores of a host whose ranks compute on them."""
    memory_gib: float | None = None
    mbs_max: int = 4
    top: int = 3
    images: str | None = None
    encoder_layers: int | None = None
    encoder_hidden: int | None = None
    encoder_heads: int | None = None
    encoder_patches: int | None = None
    llm_layers: int | None = None
    llm_hidden: int | None = None
    llm_heads: int | None = None
    seq_length: int | None = None
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        amounts = {"device_flops": self.device_flops, "memory_gib": self.memory_gib}
        for name, amount in amounts.items():
            if amount is not None and not 0 < amount < math.inf:
                raise UsageError(f"{name} must be a number above 0, but got {amount:g}: correct it")
        for name, value in sizes_of(self).items():
            if value is not None and not (isinstance(value, int) and 1 <= value <= MOST):
                raise UsageError(f"{name} must be a whole number from 1 to {MOST}, but got {value!r}: correct it")
        self.items  # noqa: B018 - mistakes in it are reported before anything runs

    @functools.cached_property
    def items(self) -> tuple[int, ...]:
        """Items of the samples, repeated, where the command does not have them."""
        return read_images(self.images) if self.images else ()

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of both modules, by the options of a command that would have them."""
        found = {option: getattr(self, name) for option, name in ARGUMENT.items()}
        # Numbers in a patch decide next to nothing.
        return {"patch-size": PATCH_SIZE, **{option: size for option, size in found.items() if size is not None}}

    @property
    def encoder(self) -> dict[str, int]:
        """Sizes of the encoder where the command does not have them."""
        sizes = {name: getattr(self, f"encoder_{name}") for name in ("layers", "hidden", "heads", "patches")}
        return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommand:
    """The job, and how a layout is written into the command."""

    job: MimoJob
    seq_length: int
    options: Callable[[MimoCandidate], Mapping[str, Value]]
    """The options that take a value."""
    switches: Callable[[MimoCandidate], Mapping[str, bool]]
    """Those that are there or not."""
    own: Params | None
    """The point that the command itself stands for."""
    variables: Callable[[MimoCandidate], Mapping[str, str]] = lambda candidate: {}
    """The environment that a layout needs in front of the command."""
    expert_parallel: tuple[int, ...] = (1,)
    notes: tuple[str, ...] = ()


def checked_ranks(num_ranks: int) -> int:
    """Return a number of ranks that layouts can be searched for."""
    if not 2 <= num_ranks <= MOST_RANKS:
        problem = f"{PRESET} searches layouts for 2 to {MOST_RANKS} ranks"
        raise UsageError(f"{problem}, but the command has {num_ranks}", hint="give --gpus 8")
    return num_ranks


def read_counts(name: str, text: str, separator: str) -> tuple[int, ...]:
    """Return the numbers of an option such as 2,1,3,0."""
    parts = text.split(separator)
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        example = separator.join("2130")
        raise UsageError(f"{name} takes counts such as {example}, but got {text!r}", hint="correct it")
    return tuple(int(part) for part in parts)


HISTOGRAM_SAMPLES = 64


def read_images(text: str) -> tuple[int, ...]:
    """Return the items of the samples: counts as they come (2+1+3+0), or how often each is (0:10+1:60+4:30).

    Shares become samples in an order that looks random and is always the same.
    """
    if ":" not in text:
        return read_counts("images", text, "+")
    pairs = [part.partition(":") for part in text.split("+")]
    if not all(part.isdecimal() and len(part) < 7 for count, _, share in pairs for part in (count, share)):
        raise UsageError(f"images takes counts and how often each is, such as 0:10+1:60+4:30, but got {text!r}")
    shares = {int(count): int(share) for count, _, share in pairs}
    if not (total := sum(shares.values())):
        raise UsageError(f"images must have a share above 0, but got {text!r}", hint="correct it")
    # The ends of the shares on a line, rounded, so that each is right to within one sample.
    ends = [round(HISTOGRAM_SAMPLES * end / total) for end in itertools.accumulate(shares.values())]
    begins = [0, *ends[:-1]]
    samples = [count for count, begin, end in zip(shares, begins, ends, strict=True) for _ in range(end - begin)]
    random.Random(0).shuffle(samples)
    return tuple(samples)


@functools.lru_cache(maxsize=16)
def _planned(job: MimoJob, mbs_max: int, expert_parallel: tuple[int, ...]) -> MimoPlan:
    """Return the plan of a job, which a study and its page ask for alike."""
    return plan_mimo(job, mbs_max=mbs_max, expert_parallel=expert_parallel)


@dataclass(frozen=True, kw_only=True)
class MimoSpace:
    """The search space of one command; dp is what fills each module's ranks."""

    read: ReadCommand
    mbs_max: int

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters; `encoder_ranks` 0 means that both modules share all ranks."""
        job = self.read.job
        ranks = range(0 if job.can_share_ranks else 1, job.num_ranks)
        space: dict[str, Parameter] = {"encoder_ranks": CategoricalParameter(list(ranks))}
        for name, work in (("encoder", job.encoder), ("llm", job.language)):
            degrees = [tp for tp in range(1, min(MAX_TP, job.num_ranks) + 1) if work.why_not_tp(tp) is None]
            space[f"{name}_tp"] = CategoricalParameter(degrees)
            if name == "llm" or job.can_pipeline_encoder:
                stages = [pp for pp in range(1, job.num_ranks + 1) if work.why_not_pp(pp) is None]
                space[f"{name}_pp"] = CategoricalParameter(stages)
        if len(self.read.expert_parallel) > 1:
            space["llm_ep"] = CategoricalParameter(list(self.read.expert_parallel))
        space["mbs"] = CategoricalParameter(list(micro_batches(job, self.mbs_max)))
        if len(job.recompute) > 1:
            space |= {"encoder_recompute": BoolParameter(), "llm_recompute": BoolParameter()}
        return space

    def candidate(self, params: Mapping[str, Value]) -> MimoCandidate:
        """Return the layout of a point; raises UsageError where its ranks cannot be filled."""
        recompute = self.read.job.recompute[0]
        return MimoCandidate.of(
            self.read.job.num_ranks,
            encoder=(int(params["encoder_tp"]), int(params.get("encoder_pp", 1))),
            language=(int(params["llm_tp"]), int(params["llm_pp"])),
            encoder_ranks=int(params["encoder_ranks"]),
            micro_batch=int(params["mbs"]),
            encoder_recompute=bool(params.get("encoder_recompute", recompute[0])),
            language_recompute=bool(params.get("llm_recompute", recompute[1])),
            expert_parallel=int(params.get("llm_ep", 1)),
        )

    def point(self, candidate: MimoCandidate) -> Params:
        """Return the point of a layout."""
        values: Params = {
            "encoder_ranks": candidate.encoder_ranks,
            "encoder_tp": candidate.encoder.tp,
            "encoder_pp": candidate.encoder.pp,
            "llm_tp": candidate.language.tp,
            "llm_pp": candidate.language.pp,
            "llm_ep": candidate.expert_parallel,
            "mbs": candidate.micro_batch,
            "encoder_recompute": candidate.encoder_recompute,
            "llm_recompute": candidate.language_recompute,
        }
        return {name: values[name] for name in self.parameters()}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks, or that it does not fit; None where it is worth a trial."""
        job = self.read.job
        try:
            candidate = self.candidate(params)
        except UsageError as error:
            return str(error)
        if (broken := why_not(job, candidate)) is not None:
            return broken
        needed, most = peak_memory_bytes(job, candidate), job.device.memory_bytes
        return f"a rank must fit {most / 2**30:.3g} GiB, but needs {needed / 2**30:.3g} GiB." if needed > most else None

    def predict(self, params: Mapping[str, Value]) -> MimoPrediction:
        """Return what a step of a point takes."""
        return predict(self.read.job, self.candidate(params))

    def own_point(self) -> Params | None:
        """Return the command's own point, where it is one of the space."""
        own, space = self.read.own, self.parameters()
        if own is None:
            return None
        point = {name: own.get(name) for name in space}
        is_known = all(value is not None and space[name].contains(value) for name, value in point.items())
        return {name: value for name, value in point.items() if value is not None} if is_known else None

    @functools.cached_property
    def plan(self) -> MimoPlan:
        """Return the layouts by their predicted step."""
        return _planned(self.read.job, self.mbs_max, self.read.expert_parallel)

    @functools.cached_property
    def batch_note(self) -> str | None:
        """Return which other global batch would allow a better split; None where none nearby gains."""
        job = self.read.job
        if job.num_ranks > MOST_RANKS_FOR_BATCHES:
            return None
        found = better_batch(job, self.plan, mbs_max=self.mbs_max, expert_parallel=self.read.expert_parallel)
        if found is None:
            return None
        size, best = found
        faster = self.plan.ranked[0].step_s / job.global_batch / (best.step_s / size) - 1
        return (
            f"a global batch of {size} instead of {job.global_batch} would allow {best.candidate.label}: "
            f"{faster:.0%} more samples a second by the plan"
        )

    def points(self) -> Iterator[Params]:
        """Yield the planned points, the fastest first."""
        return (self.point(prediction.candidate) for prediction in self.plan.ranked)
