"""One layout of an encoder and a language model, the rules that it must obey, and all layouts that obey them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from zenith_mimo.planning.config import LANGUAGE, MimoLayout, ModuleLayout
from zenith_mimo.planning.job import ENCODER, MODULES, MimoJob
from zenith_mimo.planning.work import ModuleWork
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors

MAX_TP = 8
"""Beyond a node's GPUs tensor parallelism is too slow to be searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoCandidate:
    """The degrees of both modules, the micro-batch, and which of them recompute."""

    encoder: ModuleLayout
    language: ModuleLayout
    micro_batch: int
    encoder_recompute: bool = False
    language_recompute: bool = False
    expert_parallel: int = 1

    @classmethod
    def of(
        cls,
        num_ranks: int,
        *,
        encoder: tuple[int, int],
        language: tuple[int, int],
        encoder_ranks: int,
        micro_batch: int,
        encoder_recompute: bool = False,
        language_recompute: bool = False,
        expert_parallel: int = 1,
    ) -> MimoCandidate:
        """Return the layout of (tp, pp) for each module, dp being what fills the ranks; 0 `encoder_ranks` share all.

        Raises UsageError where the ranks cannot be filled.
        """
        spans = (num_ranks, num_ranks) if encoder_ranks == 0 else (encoder_ranks, num_ranks - encoder_ranks)
        modules: list[ModuleLayout] = []
        for name, (tp, pp), size in zip(("the encoder", "the language model"), (encoder, language), spans, strict=True):
            if size < 1 or size % (tp * pp):
                problem = f"tp * pp of {name} must divide its ranks"
                raise UsageError(f"{problem}, but got {tp} * {pp} = {tp * pp} and {size}", hint="change one of them.")
            modules.append(ModuleLayout(tp=tp, pp=pp, dp=size // (tp * pp), offset=encoder_ranks * len(modules)))
        return cls(
            encoder=modules[0],
            language=modules[1],
            micro_batch=micro_batch,
            encoder_recompute=encoder_recompute,
            language_recompute=language_recompute,
            expert_parallel=expert_parallel,
        )

    def module(self, name: str) -> ModuleLayout:
        """Return the layout of one module."""
        return self.language if name == LANGUAGE else self.encoder

    def recomputes(self, name: str) -> bool:
        """Return whether a module recomputes its activations."""
        return self.language_recompute if name == LANGUAGE else self.encoder_recompute

    @property
    def encoder_ranks(self) -> int:
        """Ranks that are the encoder's alone; 0 where both modules share all."""
        return self.language.offset

    @property
    def is_colocated(self) -> bool:
        """Whether both modules live on all ranks."""
        return self.encoder_ranks == 0

    @property
    def is_homogeneous(self) -> bool:
        """Whether both modules have the same tp and dp, as without layouts of their own.

        On shared ranks that is one layout for all; on ranks of their own it is one plain pipeline, whose first stages
        are the encoder's.
        """
        return (self.encoder.tp, self.encoder.dp) == (self.language.tp, self.language.dp)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What a plan may be wrong about in the same way: homogeneous, on shared ranks, with several stages."""
        return self.is_homogeneous, self.is_colocated, self.encoder.pp > 1 or self.language.pp > 1

    @property
    def layout(self) -> MimoLayout:
        """The layout as the runtime has it; raises UsageError where it breaks a rule."""
        return MimoLayout(modules={ENCODER: self.encoder, LANGUAGE: self.language})

    @property
    def label(self) -> str:
        """The layout in short; degrees of 1 go without saying."""
        where = " shared" if self.is_colocated else ""
        experts = f" ep{self.expert_parallel}" if self.expert_parallel > 1 else ""
        recomputing = {"encoder": self.encoder_recompute, "llm": self.language_recompute}
        fields = [
            f"encoder {_degrees(self.encoder)} on {self.encoder.size}{where}",
            f"llm {_degrees(self.language)}{experts} on {self.language.size}{where}",
            f"mbs{self.micro_batch}" + "".join(f" recompute {name}" for name, on in recomputing.items() if on),
        ]
        return " | ".join(fields)


def _degrees(module: ModuleLayout) -> str:
    degrees = [f"{name}{getattr(module, name)}" for name in ("tp", "pp", "dp") if getattr(module, name) > 1]
    return " ".join(degrees) or "dp1"


def why_not(job: MimoJob, candidate: MimoCandidate) -> str | None:
    """Return which rule a layout breaks, in one line; None where it may run."""
    try:
        layout = candidate.layout
        layout.num_microbatches(candidate.micro_batch, job.global_batch)
    except UsageError as error:
        return str(error)
    encoder_dp, language_dp = candidate.encoder.dp, candidate.language.dp
    if layout.world_size != job.num_ranks:
        return f"the layout needs {layout.world_size} ranks, but the job has {job.num_ranks}."
    if candidate.is_colocated and not job.can_share_ranks:
        return "the modules must have ranks of their own, but share all: give the encoder some."
    if candidate.encoder.pp > 1 and not job.can_pipeline_encoder:
        return f"the encoder must not be pipelined, but has pp {candidate.encoder.pp}: set it to 1."
    if job.max_encoder_tp is not None and candidate.encoder.tp > job.max_encoder_tp:
        problem = f"the encoder's tp must be at most {job.max_encoder_tp}, as prefetching its features needs"
        return f"{problem}, but is {candidate.encoder.tp}: set it to {job.max_encoder_tp}."
    if not job.can_join_uneven and not job.has_even_items:
        needed = "that of the language model" if candidate.is_colocated else "at most the language model's"
        if encoder_dp > language_dp or (candidate.is_colocated and encoder_dp != language_dp):
            problem = f"samples with different numbers of items need an encoder dp of {needed}"
            return f"{problem}, but got {encoder_dp} and {language_dp}: change one of them."
    for name in MODULES:
        work, module = job.work(name), candidate.module(name)
        if (broken := work.why_not_tp(module.tp) or work.why_not_pp(module.pp)) is not None:
            return broken
    return _why_not_gathered(job, candidate.language) or _why_no_experts(job, candidate)


def _why_not_gathered(job: MimoJob, language: ModuleLayout) -> str | None:
    shards, tp = job.weight_shards, language.tp
    if shards % tp:
        return f"the weight shards must be a multiple of tp, but got {shards} and tp {tp}: change one of them."
    if shards and language.dp % (shards // tp):
        problem = "the language model's dp must be a multiple of the ranks that gather its weights"
        return f"{problem}, but got {language.dp} and {shards} shards / tp {tp} = {shards // tp}: change one of them."
    return None


def _why_no_experts(job: MimoJob, candidate: MimoCandidate) -> str | None:
    ep, experts, pp = candidate.expert_parallel, job.language.num_experts, candidate.language.pp
    if ep > 1 and not experts:
        return f"expert parallelism needs experts, but the model has none and ep is {ep}: set it to 1."
    if experts % ep:
        return f"the experts must be a multiple of ep, but got {experts} and ep {ep}: change one of them."
    # The experts are laid out over the same ranks of each stage a second time: ep * expert tp * expert dp.
    shards, size = job.expert_ranks(1), candidate.language.size
    if experts and size % (shards * ep * pp):
        problem = "the language model's ranks must be a multiple of expert shards * ep * pp"
        return f"{problem}, but got {size} and {shards} * {ep} * {pp}."
    return None


def mimo_candidates(
    job: MimoJob, *, mbs_max: int = 4, expert_parallel: tuple[int, ...] = (1,)
) -> Iterator[MimoCandidate]:
    """Yield the layouts without recomputation, shared ranks first, then by the encoder's ranks."""
    rest = list(itertools.product(micro_batches(job, mbs_max), expert_parallel))
    for encoder_ranks in range(0 if job.can_share_ranks else 1, job.num_ranks):
        encoder_size, language_size = encoder_ranks or job.num_ranks, job.num_ranks - encoder_ranks
        pairs = itertools.product(_degree_pairs(job.encoder, encoder_size), _degree_pairs(job.language, language_size))
        for encoder, language in pairs:
            lanes = (encoder_size // (encoder[0] * encoder[1]), language_size // (language[0] * language[1]))
            if max(lanes) % min(lanes) or job.global_batch % max(lanes):
                continue
            for micro_batch, ep in rest:
                candidate = MimoCandidate.of(
                    job.num_ranks,
                    encoder=encoder,
                    language=language,
                    encoder_ranks=encoder_ranks,
                    micro_batch=micro_batch,
                    expert_parallel=ep,
                )
                if why_not(job, candidate) is None:
                    yield candidate


def recomputing(job: MimoJob, candidate: MimoCandidate) -> list[MimoCandidate]:
    """Return a layout with each recomputation that the job allows, the least first."""
    return [
        replace(candidate, encoder_recompute=encoder, language_recompute=language)
        for encoder, language in job.recompute
    ]


def micro_batches(job: MimoJob, mbs_max: int) -> list[int]:
    """Return the micro-batches that divide the global batch."""
    return [size for size in divisors(job.global_batch) if size <= mbs_max]


def _degree_pairs(work: ModuleWork, size: int) -> list[tuple[int, int]]:
    """Return every (tp, pp) of a module on that many ranks."""
    degrees = [tp for tp in divisors(size) if tp <= MAX_TP and work.why_not_tp(tp) is None]
    return [(tp, pp) for tp in degrees for pp in divisors(size // tp) if work.why_not_pp(pp) is None]
