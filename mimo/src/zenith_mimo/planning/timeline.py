"""The time of one step, simulated in the order of the real schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.config import LANGUAGE, ModuleLayout, lane_partners
from zenith_mimo.planning.job import ENCODER, MODULES, MimoDevice, MimoJob
from zenith_mimo.planning.work import ModuleRates, ModuleWork, stage_layers
from zenith_tune.describe.cluster_spec import LinkSpec

SUMS_PER_LAYER = 2
"""Forward after attention and after the perceptron, backward before them (Megatron-LM, arXiv 1909.08053, figure 4)."""
ENOUGH_ROUNDS = 4
"""After so many micro-batches for each stage, one more costs what the one before did."""
Place = tuple[str, int, int]
"""Module, lane and stage."""
Turn = tuple[bool, int]
"""Whether it is a backward pass, and its micro-batch."""


def all_reduce_s(link: LinkSpec, num_bytes: float, n: int) -> float:
    """Return the time of a ring's 2 (n - 1) steps of bytes / n each; nothing for one rank."""
    return 2 * (n - 1) * (link.latency_s + num_bytes / n / link.bytes_per_s) if n > 1 else 0.0


def message_s(link: LinkSpec, num_bytes: float) -> float:
    """Return the time from one rank to another."""
    return link.latency_s + num_bytes / link.bytes_per_s


@dataclass(frozen=True, slots=True)
class PassTime:
    """The time of one pass."""

    compute_s: float = 0.0
    tensor_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together: a rank waits for the sums."""
        return self.compute_s + self.tensor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """The passes of one stage, estimated by the units of a micro-batch."""

    work: ModuleWork
    layout: ModuleLayout
    stage: int
    recompute: bool
    device: MimoDevice
    rates: ModuleRates
    tensor_link: LinkSpec
    """Link between the ranks of a tensor-parallel group."""
    expert_link: LinkSpec
    """Link between the ranks of an expert-parallel group."""
    expert_parallel: int = 1

    def forward(self, num_units: float) -> PassTime:
        """Return the time of a forward pass over that many units."""
        flops = self.work.forward_flops(stage=self.stage, num_stages=self.layout.pp, tp=self.layout.tp)
        num_layers = self._num_layers if num_units else 0
        compute_s = self.rates.forward.seconds(num_units * flops, self._numbers(num_units), num_layers)
        return PassTime(compute_s, self._exchanges_s(num_units, 1, is_forward=True))

    def backward(self, num_units: float) -> PassTime:
        """Return the time of a backward pass over that many units."""
        flops = self.work.backward_flops(
            stage=self.stage, num_stages=self.layout.pp, tp=self.layout.tp, recompute=self.recompute
        )
        rounds = 2 if self.recompute else 1
        has_layers = bool(num_units) and self.work.layer.backward_share > 0
        exchanges_s = self._exchanges_s(num_units, rounds, is_forward=False) if has_layers else 0.0
        numbers, num_layers = (rounds * self._numbers(num_units), rounds * self._num_layers) if has_layers else (0, 0)
        return PassTime(self.rates.backward.seconds(num_units * flops, numbers, num_layers), exchanges_s)

    def _numbers(self, num_units: float) -> float:
        """Return the hidden numbers of this rank's layers."""
        share = self.layout.tp if self.work.is_sequence_parallel else 1
        return num_units * self.work.hidden_numbers * self._num_layers / share

    @property
    def _num_layers(self) -> int:
        return len(stage_layers(self.work.num_layers, self.stage, self.layout.pp))

    def _exchanges_s(self, num_units: float, rounds: int, *, is_forward: bool) -> float:
        """Return the time of the sums over tp and of the ways to the experts and back; none where there is nothing."""
        if not num_units:
            return 0.0
        num_layers = self._num_layers
        ends = int(self.stage == 0 and is_forward) + int(self.stage == self.layout.pp - 1)
        link, number = self.tensor_link, self.device.number_bytes
        one_sum = all_reduce_s(link, num_units * self.work.hidden_numbers * number, self.layout.tp)
        experts = 0.0
        if self.expert_parallel > 1:
            away = (self.expert_parallel - 1) / self.expert_parallel
            num_bytes = num_units * self.work.dispatched_numbers * number / self.layout.tp
            experts = 2 * message_s(self.expert_link, away * num_bytes)
        return rounds * num_layers * (SUMS_PER_LAYER * one_sum + experts) + ends * one_sum


def place_ranks(module: ModuleLayout, lane: int, stage: int) -> range:
    """Return the ranks of one stage of one lane: its tensor-parallel group."""
    first = module.offset + module.tp * (stage + module.pp * lane)
    return range(first, first + module.tp)


def passes_of(job: MimoJob, candidate: MimoCandidate, name: str, stage: int) -> StagePasses:
    """Return the estimate of one stage of a module."""
    module = candidate.module(name)
    group_lanes = max(candidate.expert_parallel // module.tp, 1)
    experts = [
        [
            rank
            for lane in range(first, min(first + group_lanes, module.dp))
            for rank in place_ranks(module, lane, stage)
        ]
        for first in range(0, module.dp, group_lanes)
    ]
    return StagePasses(
        work=job.work(name),
        layout=module,
        rates=job.device.rates_of(name),
        tensor_link=job.device.link_between(place_ranks(module, lane, stage) for lane in range(module.dp)),
        expert_link=job.device.link_between(experts),
        stage=stage,
        recompute=candidate.recomputes(name),
        device=job.device,
        expert_parallel=candidate.expert_parallel if name == LANGUAGE else 1,
    )


def all_units(job: MimoJob, candidate: MimoCandidate, name: str, num_microbatches: int) -> list[list[int]]:
    """Return what every lane of a module reads of each micro-batch: neighbouring samples; lanes all alike are one."""
    num_lanes = 1 if job.has_even_items else candidate.module(name).dp
    if name == LANGUAGE:
        return [[candidate.micro_batch] * num_microbatches] * num_lanes
    size = candidate.micro_batch * candidate.language.dp
    share = size // candidate.encoder.dp
    begins = [[index * size + lane * share for index in range(num_microbatches)] for lane in range(num_lanes)]
    return [[job.num_items(begin, begin + share) for begin in lane] for lane in begins]


def _rows_s(job: MimoJob, candidate: MimoCandidate) -> float:
    """Return the time of a message with the rows that a micro-batch takes from the encoder."""
    rows = job.encoder.output_numbers * sum(job.items) / len(job.items) * candidate.micro_batch
    return message_s(job.device.link_between(_bridge_pairs(candidate)), rows * job.device.number_bytes)


def _bridge_pairs(candidate: MimoCandidate) -> Iterator[tuple[int, int]]:
    """Yield the ranks that hand rows to one another, from an encoder's last stage to a language model's first."""
    encoder, language = candidate.encoder, candidate.language
    for lane in range(encoder.dp):
        for partner in lane_partners(lane, encoder.dp, language.dp):
            yield place_ranks(encoder, lane, encoder.pp - 1)[0], place_ranks(language, partner, 0)[0]


def _stage_link(job: MimoJob, module: ModuleLayout, stage: int, other: int) -> LinkSpec:
    """Return the link between neighbouring stages, the slowest of all lanes."""
    lanes = range(module.dp)
    return job.device.link_between(
        (place_ranks(module, lane, stage)[0], place_ranks(module, lane, other)[0]) for lane in lanes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time when the last rank has finished its passes, and the average work of a rank by then."""

    span_s: float
    compute_s: float
    tensor_s: float


def step_time(job: MimoJob, candidate: MimoCandidate, num_microbatches: int) -> StepTime:
    """Return the time of a step; many micro-batches, all alike or repeating, are extrapolated from some."""
    simulate = _shared_step if candidate.is_colocated else _pipelined_step
    period = job.period(candidate.micro_batch * candidate.language.dp)
    enough = -(-ENOUGH_ROUNDS * (candidate.encoder.pp + candidate.language.pp) // period) * period
    if num_microbatches <= 2 * enough:
        return simulate(job, candidate, num_microbatches)
    some, more = simulate(job, candidate, enough), simulate(job, candidate, 2 * enough)
    rounds = (num_microbatches - enough) / enough
    return StepTime(
        span_s=some.span_s + rounds * (more.span_s - some.span_s),
        compute_s=some.compute_s + rounds * (more.compute_s - some.compute_s),
        tensor_s=some.tensor_s + rounds * (more.tensor_s - some.tensor_s),
    )


def _shared_step(job: MimoJob, candidate: MimoCandidate, num_microbatches: int) -> StepTime:
    """Simulate shared ranks: encoder lanes that one language lane gathers from wait for the slowest of them.

    Language lanes are all alike, so that where the encoder has fewer lanes no rank waits before the end.
    """
    encoder, language = passes_of(job, candidate, ENCODER, 0), passes_of(job, candidate, LANGUAGE, 0)
    units = all_units(job, candidate, ENCODER, num_microbatches)
    num_lanes = len(units)
    group = max(candidate.encoder.dp // candidate.language.dp, 1) if num_lanes > 1 else 1
    gather_s = 0.0 if candidate.encoder.dp == candidate.language.dp else _rows_s(job, candidate)
    lm = [language.forward(candidate.micro_batch), language.backward(candidate.micro_batch)]
    lm_s = sum(time.total_s for time in lm)
    clocks, compute_s, tensor_s = [0.0] * num_lanes, 0.0, 0.0
    for index in range(num_microbatches):
        forward = [encoder.forward(lane[index]) for lane in units]
        backward = [encoder.backward(lane[index]) for lane in units]
        clocks = [clock + time.total_s for clock, time in zip(clocks, forward, strict=True)]
        for begin in range(0, num_lanes, group):
            clocks[begin : begin + group] = [max(clocks[begin : begin + group]) + gather_s] * group
        clocks = [clock + lm_s + time.total_s for clock, time in zip(clocks, backward, strict=True)]
        compute_s += sum(t.compute_s for t in lm) + sum(t.compute_s for t in (*forward, *backward)) / num_lanes
        tensor_s += sum(t.tensor_s for t in lm) + sum(t.tensor_s for t in (*forward, *backward)) / num_lanes
    return StepTime(span_s=max(clocks), compute_s=compute_s, tensor_s=tensor_s)


@dataclass(slots=True, kw_only=True)
class TimedStage:
    """One stage of one lane, whose tensor-parallel ranks move together, and what it has done so far."""

    passes: StagePasses
    units: list[int]
    num_ahead: int
    before: list[Place]
    """The stages that it takes its input from."""
    after: list[Place]
    input_s: float
    """The time of a message to it."""
    grad_s: float
    """The time of the gradient's message to it."""
    clock_s: float = 0.0
    compute_s: float = 0.0
    tensor_s: float = 0.0
    ends: dict[Turn, float] = field(default_factory=dict)
    times: dict[Turn, PassTime] = field(default_factory=dict)
    """The time of a pass by its units."""

    def turns(self) -> list[Turn]:
        """Return its passes in order: 1F1B begins with as many forwards as stages follow."""
        num, ahead = len(self.units), min(self.num_ahead, len(self.units))
        order = []
        for index in range(num + ahead):
            if index < num:
                order.append((False, index))
            if index >= ahead:
                order.append((True, index - ahead))
        return order

    def run(self, turn: Turn, ready_s: float) -> None:
        """Run one pass as soon as it can."""
        key = (turn[0], self.units[turn[1]])
        if (time := self.times.get(key)) is None:
            time = self.times[key] = (self.passes.backward if turn[0] else self.passes.forward)(key[1])
        begin_s = ready_s if ready_s > self.clock_s else self.clock_s
        self.clock_s = self.ends[turn] = begin_s + time.compute_s + time.tensor_s
        self.compute_s += time.compute_s
        self.tensor_s += time.tensor_s

    def ready_s(self, stages: dict[Place, TimedStage], turn: Turn) -> float | None:
        """Return when all inputs of a pass are there; None while one of them is not yet on its way."""
        needed, message_s = (self.after, self.grad_s) if turn[0] else (self.before, self.input_s)
        latest_s = -message_s
        for place in needed:  # asked millions of times for a plan of many ranks
            if (end := stages[place].ends.get(turn)) is None:
                return None
            if end > latest_s:
                latest_s = end
        return latest_s + message_s


def _pipelined_step(job: MimoJob, candidate: MimoCandidate, num_microbatches: int) -> StepTime:
    """Simulate modules on ranks of their own: every stage takes each turn as soon as what it waits for is there."""
    stages = _stages(job, candidate, num_microbatches)
    left = {place: stage.turns() for place, stage in stages.items()}
    while any(left.values()):
        for place, turns in left.items():
            stage = stages[place]
            while turns and (ready_s := stage.ready_s(stages, turns[0])) is not None:
                stage.run(turns.pop(0), ready_s)
    # Lanes that are all alike are simulated once and count for all of them.
    weights = {name: candidate.module(name).size / sum(place[0] == name for place in stages) for name in MODULES}
    ranks = candidate.encoder.size + candidate.language.size
    return StepTime(
        span_s=max(stage.clock_s for stage in stages.values()),
        compute_s=sum(weights[place[0]] * stage.compute_s for place, stage in stages.items()) / ranks,
        tensor_s=sum(weights[place[0]] * stage.tensor_s for place, stage in stages.items()) / ranks,
    )


def _stages(job: MimoJob, candidate: MimoCandidate, num_microbatches: int) -> dict[Place, TimedStage]:
    layout = candidate.layout
    units = {name: all_units(job, candidate, name, num_microbatches) for name in MODULES}
    stages = {}
    for name in MODULES:
        other = ENCODER if name == LANGUAGE else LANGUAGE
        for lane, lane_units in enumerate(units[name]):
            partners = lane_partners(lane, len(units[name]), len(units[other]))
            for stage in range(candidate.module(name).pp):
                before, after, input_s, grad_s = _links(job, candidate, (name, lane, stage), partners, lane_units)
                stages[name, lane, stage] = TimedStage(
                    passes=passes_of(job, candidate, name, stage),
                    units=lane_units,
                    num_ahead=layout.stages_after(name, stage),
                    before=before,
                    after=after,
                    input_s=input_s,
                    grad_s=grad_s,
                )
    return stages


def _links(
    job: MimoJob, candidate: MimoCandidate, place: Place, partners: list[int], units: list[int]
) -> tuple[list[Place], list[Place], float, float]:
    """Return the stages before and after one, and the time of a message to it from each side."""
    name, lane, stage = place
    module = candidate.module(name)
    before: list[Place] = [(name, lane, stage - 1)] if stage else []
    after: list[Place] = [(name, lane, stage + 1)] if stage + 1 < module.pp else []
    work = job.work(name)
    hidden = sum(units) / len(units) * work.hidden_numbers / (module.tp if work.is_sequence_parallel else 1)
    num_bytes = hidden * job.device.number_bytes
    input_s = message_s(_stage_link(job, module, max(stage - 1, 0), stage), num_bytes)
    grad_s = message_s(_stage_link(job, module, stage, min(stage + 1, module.pp - 1)), num_bytes)
    # The first rank of a tensor-parallel group takes the rows and hands them on to the others.
    bridge_s = (2 if module.tp > 1 else 1) * _rows_s(job, candidate)
    if name == LANGUAGE and not before:
        before, input_s = [(ENCODER, partner, candidate.encoder.pp - 1) for partner in partners], bridge_s
    if name == ENCODER and not after:
        after, grad_s = [(LANGUAGE, partner, 0) for partner in partners], bridge_s
    return before, after, input_s, grad_s
