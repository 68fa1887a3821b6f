"""Every layout of an encoder and a language model that may run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.layouts.divisors import divisors
from zenith_tune.planner.mimo.candidate import MimoCandidate, why_not
from zenith_tune.planner.mimo.job import MimoJob

MAX_TP = 8
"""Beyond a node's GPUs tensor parallelism is not worth a thought."""


def mimo_candidates(
    job: MimoJob, *, mbs_max: int = 4, expert_parallel: tuple[int, ...] = (1,)
) -> Iterator[MimoCandidate]:
    """Yield the layouts without recomputation, shared ranks first, then by the encoder's ranks."""
    rest = list(itertools.product(micro_batches(job, mbs_max), expert_parallel))
    for encoder_ranks in range(0 if job.can_share_ranks else 1, job.num_ranks):
        encoder_size, language_size = encoder_ranks or job.num_ranks, job.num_ranks - encoder_ranks
        for encoder, language in itertools.product(_degrees(encoder_size), _degrees(language_size)):
            small, large = sorted(
                (encoder_size // (encoder[0] * encoder[1]), language_size // (language[0] * language[1]))
            )
            if large % small:
                continue
            for micro_batch, ep in rest:
                at = MimoCandidate.of(
                    job.num_ranks,
                    encoder=encoder,
                    language=language,
                    encoder_ranks=encoder_ranks,
                    micro_batch=micro_batch,
                    expert_parallel=ep,
                )
                if why_not(job, at) is None:
                    yield at


def recomputing(job: MimoJob, at: MimoCandidate) -> list[MimoCandidate]:
    """Return a layout with each recomputation that the job allows, the least first."""
    return [replace(at, encoder_recompute=encoder, language_recompute=language) for encoder, language in job.recompute]


def micro_batches(job: MimoJob, mbs_max: int) -> list[int]:
    """Return the micro-batches that divide the global batch."""
    return [size for size in divisors(job.global_batch) if size <= mbs_max]


def _degrees(size: int) -> list[tuple[int, int]]:
    """Return every (tp, pp) of a module on that many ranks."""
    return [(tp, pp) for tp in divisors(size) if tp <= MAX_TP for pp in divisors(size // tp)]
