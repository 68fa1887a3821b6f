"""How long a step of a layout takes, and of what that time is made."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.mimo.module_layout import LANGUAGE, ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.timeline import Place, PlayedStep, TimedStage, passes_of, play, stages_of, units_of
from zenith_tune.planning.mimo_memory import peak_memory_bytes
from zenith_tune.planning.mimo_passes import all_reduce_s
from zenith_tune.planning.mimo_rank_parameters import rank_parameters
from zenith_tune.planning.mimo_shared_ranks import shared_step

ENOUGH_ROUNDS = 4
"""After so many micro-batches for each stage, one more costs what the one before did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPrediction:
    """Hold a step's time by cause, each as an average over the ranks, and the pace of both modules."""

    at: MimoCandidate
    compute_s: float
    tensor_s: float
    """Sums over tensor-parallel groups, and ways to experts."""
    idle_s: float
    """Waiting: for the pipeline to fill and drain, for the slower module, for lanes with more items."""
    sync_s: float
    """Gradients summed over replicas, and the optimizer."""
    encoder_stage_s: float
    """Forward and backward of a micro-batch on the encoder's slowest stage."""
    language_stage_s: float
    num_microbatches: int
    memory_bytes: float

    @property
    def step_s(self) -> float:
        """Return the time of a step."""
        return self.compute_s + self.tensor_s + self.idle_s + self.sync_s

    @property
    def idle_share(self) -> float:
        """Return the part of the step that an average rank waits."""
        return self.idle_s / self.step_s


def predict(job: MimoJob, at: MimoCandidate) -> MimoPrediction:
    """Return what a layout that may run takes."""
    num = at.layout.num_microbatches(at.micro_batch, job.global_batch)
    done = _step(job, at, num)
    return MimoPrediction(
        at=at,
        compute_s=done.compute_s,
        tensor_s=done.tensor_s,
        idle_s=max(done.span_s - done.compute_s - done.tensor_s, 0.0),
        sync_s=_end_s(job, at),
        encoder_stage_s=_stage_s(job, at, ENCODER, num),
        language_stage_s=_stage_s(job, at, LANGUAGE, num),
        num_microbatches=num,
        memory_bytes=peak_memory_bytes(job, at),
    )


def _step(job: MimoJob, at: MimoCandidate, num: int) -> PlayedStep:
    """Play a step; one with many micro-batches, all alike or repeating, is played for some and drawn out."""
    play_for = shared_step if at.is_colocated else _played
    period = job.period(at.micro_batch * at.language.dp)
    enough = -(-ENOUGH_ROUNDS * (at.encoder.pp + at.language.pp) // period) * period
    if num <= 2 * enough:
        return play_for(job, at, num)
    some, more = play_for(job, at, enough), play_for(job, at, 2 * enough)
    rounds = (num - enough) / enough

    def drawn_out(name: str) -> float:
        begin, end = float(getattr(some, name)), float(getattr(more, name))
        return begin + rounds * (end - begin)

    return PlayedStep(**{name: drawn_out(name) for name in ("span_s", "compute_s", "tensor_s")})


def _played(job: MimoJob, at: MimoCandidate, num: int) -> PlayedStep:
    stages: dict[Place, TimedStage] = stages_of(job, at, num)
    play(stages)
    # Lanes that are all alike are played once and count for all of them.
    weights = {
        name: module.size / sum(1 for place in stages if place[0] == name)
        for name, module in ((ENCODER, at.encoder), (LANGUAGE, at.language))
    }
    ranks = at.encoder.size + at.language.size
    return PlayedStep(
        span_s=max(stage.clock_s for stage in stages.values()),
        compute_s=sum(weights[place[0]] * stage.compute_s for place, stage in stages.items()) / ranks,
        tensor_s=sum(weights[place[0]] * stage.tensor_s for place, stage in stages.items()) / ranks,
    )


def _stage_s(job: MimoJob, at: MimoCandidate, name: str, num: int) -> float:
    module = at.language if name == LANGUAGE else at.encoder
    lanes = range(1 if job.has_even_items else module.dp)
    num = min(num, job.period(at.micro_batch * at.language.dp))
    units = max(sum(units_of(job, at, name, lane, num)) for lane in lanes) / num
    stages = [passes_of(job, at, name, stage) for stage in range(module.pp)]
    return max(passes.forward(units).total_s + passes.backward(units).total_s for passes in stages)


def _end_s(job: MimoJob, at: MimoCandidate) -> float:
    """Return the time after the passes: gradients summed over replicas, and the optimizer."""
    rates, number_bytes = job.device.rates, job.device.number_bytes
    if rates is None:
        return job.device.step_s + max(_sync_s(job, at, ENCODER), _sync_s(job, at, LANGUAGE))
    replicas = {ENCODER: at.encoder.dp, LANGUAGE: at.language.dp}
    return rates.agree_s + max(
        sum(
            rates.sync_s(params * number_bytes, replicas[name]) + rates.update_s(params, num_layers)
            for name, (params, num_layers) in rank.items()
        )
        for rank in rank_parameters(job, at)
    )


def _sync_s(job: MimoJob, at: MimoCandidate, name: str) -> float:
    work: ModuleWork = job.language if name == LANGUAGE else job.encoder
    module: ModuleLayout = at.language if name == LANGUAGE else at.encoder
    if not work.is_trained:
        return 0.0
    params = max(
        sum(
            count * part.params(module.tp, at.expert_parallel)
            for part, count in work.stage_parts(stage, module.pp)
            if part.is_trained
        )
        for stage in range(module.pp)
    )
    return all_reduce_s(job.device.link, params * job.device.number_bytes, module.dp)
