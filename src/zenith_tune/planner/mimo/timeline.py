"""One step of modules on ranks of their own, played through on paper in the order of the real schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.mimo.lane_partners import lane_partners
from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planning.mimo_passes import PassTime, StagePasses, message_s

Place = tuple[str, int, int]
"""Module, lane and stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """Hold when the last rank is done with its passes, and what the ranks have done by then on average."""

    span_s: float
    compute_s: float
    tensor_s: float


@dataclass(slots=True, kw_only=True)
class TimedStage:
    """One stage of one lane, whose tensor-parallel ranks move together, and what it has done so far."""

    passes: StagePasses
    units: list[int]
    """Of each micro-batch."""
    num_ahead: int
    before: list[Place]
    """The stages that it takes its input from."""
    after: list[Place]
    input_s: float
    """What a message to it takes."""
    grad_s: float
    """What the gradient's message to it takes."""
    clock_s: float = 0.0
    compute_s: float = 0.0
    tensor_s: float = 0.0
    ends: dict[tuple[bool, int], float] = field(default_factory=dict)
    """When each pass ended: (is backward, micro-batch)."""
    times: dict[tuple[bool, int], PassTime] = field(default_factory=dict)
    """What passes take: (is backward, units)."""

    def turns(self) -> list[tuple[bool, int]]:
        """Return its passes in order: 1F1B begins with as many forwards as stages follow."""
        num, ahead = len(self.units), min(self.num_ahead, len(self.units))
        order = []
        for index in range(num + ahead):
            if index < num:
                order.append((False, index))
            if index >= ahead:
                order.append((True, index - ahead))
        return order

    def take(self, turn: tuple[bool, int], ready_s: float) -> None:
        """Run one pass as soon as it can."""
        is_backward, units = turn[0], self.units[turn[1]]
        time = self.times.get((is_backward, units))
        if time is None:
            time = self.passes.backward(units) if is_backward else self.passes.forward(units)
            self.times[is_backward, units] = time
        self.clock_s = self.ends[turn] = max(self.clock_s, ready_s) + time.total_s
        self.compute_s += time.compute_s
        self.tensor_s += time.tensor_s


def play(stages: dict[Place, TimedStage]) -> None:
    """Run every stage through its turns, each as soon as what it waits for is there."""
    left = {place: stage.turns() for place, stage in stages.items()}
    while any(left.values()):
        for place, turns in left.items():
            stage = stages[place]
            while turns and (ready_s := _ready_s(stages, stage, turns[0])) is not None:
                stage.take(turns.pop(0), ready_s)


def _ready_s(stages: dict[Place, TimedStage], stage: TimedStage, turn: tuple[bool, int]) -> float | None:
    """Return when all inputs of a pass are there; None while one of them is not yet on its way."""
    is_backward, _ = turn
    needed = stage.after if is_backward else stage.before
    ends = [stages[place].ends.get(turn) for place in needed]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return None
    return max(known, default=0.0) + (stage.grad_s if is_backward else stage.input_s) * bool(ends)


def stages_of(job: MimoJob, at: MimoCandidate, num_microbatches: int) -> dict[Place, TimedStage]:
    """Return the stages of a layout before a step; lanes that are all alike are one."""
    lanes = (1, 1) if job.has_even_items else (at.encoder.dp, at.language.dp)
    stages = {}
    for name, module, num_lanes in zip((ENCODER, LANGUAGE), (at.encoder, at.language), lanes, strict=True):
        for lane in range(num_lanes):
            units = units_of(job, at, name, lane, num_microbatches)
            for stage in range(module.pp):
                stages[name, lane, stage] = _timed_stage(job, at, (name, lane, stage), units, lanes)
    return stages


def units_of(job: MimoJob, at: MimoCandidate, name: str, lane: int, num_microbatches: int) -> list[int]:
    """Return what a lane reads of each micro-batch: neighbouring samples, whatever the lanes."""
    if name == LANGUAGE:
        return [at.micro_batch] * num_microbatches
    size = at.micro_batch * at.language.dp
    share = size // at.encoder.dp
    begins = [index * size + lane * share for index in range(num_microbatches)]
    return [job.num_items(begin, begin + share) for begin in begins]


def _timed_stage(job: MimoJob, at: MimoCandidate, place: Place, units: list[int], lanes: tuple[int, int]) -> TimedStage:
    name, lane, stage = place
    is_language = name == LANGUAGE
    work, module = (job.language, at.language) if is_language else (job.encoder, at.encoder)
    partners = lane_partners(lane, *(reversed(lanes) if is_language else lanes))
    before: list[Place] = [(name, lane, stage - 1)] if stage else []
    after: list[Place] = [(name, lane, stage + 1)] if stage + 1 < module.pp else []
    inside_s = message_s(job.device.link, sum(units) / len(units) * work.hidden_numbers * job.device.number_bytes)
    input_s = grad_s = inside_s
    if is_language and not before:
        before, input_s = [(ENCODER, partner, at.encoder.pp - 1) for partner in partners], _bridge_s(job, at, module.tp)
    if not is_language and not after:
        after, grad_s = [(LANGUAGE, partner, 0) for partner in partners], _bridge_s(job, at, module.tp)
    return TimedStage(
        passes=passes_of(job, at, name, stage),
        units=units,
        num_ahead=at.stages_after(name, stage),
        before=before,
        after=after,
        input_s=input_s,
        grad_s=grad_s,
    )


def _bridge_s(job: MimoJob, at: MimoCandidate, tp: int) -> float:
    """Return the time of a micro-batch's rows between the modules; a leader hands them on to its tensor group."""
    rows = job.encoder.output_numbers * sum(job.items) / len(job.items) * at.micro_batch
    return (2 if tp > 1 else 1) * message_s(job.device.link, rows * job.device.number_bytes)


def passes_of(job: MimoJob, at: MimoCandidate, name: str, stage: int) -> StagePasses:
    """Return what the passes of one stage of a module take."""
    is_language, rates = name == LANGUAGE, job.device.rates
    return StagePasses(
        work=job.language if is_language else job.encoder,
        layout=at.language if is_language else at.encoder,
        stage=stage,
        recompute=at.language_recompute if is_language else at.encoder_recompute,
        device=job.device,
        expert_parallel=at.expert_parallel if is_language else 1,
        rates=None if rates is None else rates.language if is_language else rates.encoder,
    )
