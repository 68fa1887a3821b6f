"""How long a step of a layout takes, and of what that time is made."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.mimo.module_layout import LANGUAGE, ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork, stage_layers
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.timeline import (
    Place,
    PlayedStep,
    TimedStage,
    all_reduce_s,
    message_s,
    passes_of,
    peak_memory_bytes,
    play,
    stages_of,
    units_of,
)


def rank_parameters(job: MimoJob, at: MimoCandidate) -> list[dict[str, tuple[float, int]]]:
    """Return the kinds of ranks that a layout has: by module, its parameters and its layers there."""
    kinds: dict[str, list[tuple[float, int]]] = {}
    for name, work, module in ((ENCODER, job.encoder, at.encoder), (LANGUAGE, job.language, at.language)):
        kinds[name] = [
            (
                sum(count * part.params(module.tp) for part, count in work.stage_parts(stage, module.pp)),
                len(stage_layers(work.num_layers, stage, module.pp)),
            )
            for stage in range(module.pp)
        ]
    if at.is_colocated:
        return [{name: stages[0] for name, stages in kinds.items()}]
    return [{name: stage} for name, stages in kinds.items() for stage in stages]


def shared_step(job: MimoJob, at: MimoCandidate, num_microbatches: int) -> PlayedStep:
    """Play a step through: encoder lanes that one language lane gathers from wait for the slowest of them.

    Language lanes are all alike, so that where the encoder has fewer lanes nobody waits before the end.
    """
    encoder, language = passes_of(job, at, ENCODER, 0), passes_of(job, at, LANGUAGE, 0)
    num_lanes = 1 if job.has_even_items else at.encoder.dp
    group = max(at.encoder.dp // at.language.dp, 1) if num_lanes > 1 else 1
    units = [units_of(job, at, ENCODER, lane, num_microbatches) for lane in range(num_lanes)]
    lm = [language.forward(at.micro_batch), language.backward(at.micro_batch)]
    bridge_s = _bridge_s(job, at)
    clocks, compute_s, tensor_s = [0.0] * num_lanes, 0.0, 0.0
    for index in range(num_microbatches):
        forward = [encoder.forward(lane[index]) for lane in units]
        backward = [encoder.backward(lane[index]) for lane in units]
        clocks = [clock + time.total_s for clock, time in zip(clocks, forward, strict=True)]
        for begin in range(0, num_lanes, group):
            met = max(clocks[begin : begin + group]) + bridge_s
            clocks[begin : begin + group] = [met] * group
        rest_s = sum(time.total_s for time in lm)
        clocks = [clock + rest_s + time.total_s for clock, time in zip(clocks, backward, strict=True)]
        each = 1.0 / num_lanes
        compute_s += sum(time.compute_s for time in lm) + each * sum(t.compute_s for t in (*forward, *backward))
        tensor_s += sum(time.tensor_s for time in lm) + each * sum(t.tensor_s for t in (*forward, *backward))
    return PlayedStep(span_s=max(clocks), compute_s=compute_s, tensor_s=tensor_s)


def _bridge_s(job: MimoJob, at: MimoCandidate) -> float:
    """Return the time of gathering the rows of a micro-batch from siblings; nothing where the lanes are the same."""
    if at.encoder.dp == at.language.dp:
        return 0.0
    rows = job.encoder.output_numbers * sum(job.items) / len(job.items) * at.micro_batch
    return message_s(job.device.link, rows * job.device.number_bytes)


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
