"""Layouts of an encoder and a language model by their predicted step, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.planner.mimo.candidate import MimoCandidate, mimo_candidates, recomputing
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.prediction import MimoPrediction, predict
from zenith_tune.planner.mimo.timeline import peak_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPlan:
    """Hold the ranking, and how many layouts were left out for their memory."""

    ranked: tuple[MimoPrediction, ...]
    num_too_large: int

    @property
    def homogeneous(self) -> list[MimoPrediction]:
        """Return those in which both modules have the same degrees, the fastest first."""
        return [each for each in self.ranked if each.at.is_homogeneous]

    def at(self, candidate: MimoCandidate) -> MimoPrediction | None:
        """Return the prediction of a layout, where it is planned."""
        return next((each for each in self.ranked if each.at == candidate), None)


def plan_mimo(job: MimoJob, *, mbs_max: int = 4, expert_parallel: tuple[int, ...] = (1,)) -> MimoPlan:
    """Rank every layout that may run and fits; one that does not fit is tried with recomputation.

    Raises UsageError where none is left.
    """
    found: list[MimoPrediction] = []
    too_large: list[float] = []
    for at in mimo_candidates(job, mbs_max=mbs_max, expert_parallel=expert_parallel):
        variants = {each: peak_memory_bytes(job, each) for each in recomputing(job, at)}
        fitting = [each for each, needed in variants.items() if needed <= job.device.memory_bytes]
        if not fitting:
            too_large.append(min(variants.values()))
        elif fitting[0] == next(iter(variants)):
            found.append(predict(job, fitting[0]))  # recomputation never makes a step faster
        else:
            found.append(min((predict(job, each) for each in fitting), key=_rank))
    if not found:
        raise UsageError(_nothing_left(job, too_large))
    return MimoPlan(ranked=tuple(sorted(found, key=_rank)), num_too_large=len(too_large))


def _rank(each: MimoPrediction) -> tuple[float, float, str]:
    """Order by time, then by what is left of the memory; names break what ties are left."""
    return (each.step_s, each.memory_bytes, each.at.label)


def _nothing_left(job: MimoJob, too_large: list[float]) -> str:
    if not too_large:
        problem = f"{job.num_ranks} ranks and a global batch of {job.global_batch} allow no layout of both modules"
        return f"{problem}: change one of them."
    problem = f"a layout must fit the {job.device.memory_bytes / 2**30:.3g} GiB of a device"
    return f"{problem}, but the smallest of {len(too_large)} needs {min(too_large) / 2**30:.3g} GiB: take more ranks."
