"""One step of modules on ranks of their own, played through on paper in the order of the real schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.mimo.module_layout import LANGUAGE, ModuleLayout, lane_partners
from zenith_tune.mimo.module_work import ModuleWork, stage_layers
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob, ModuleRates

SUMS_PER_LAYER = 2
"""Forward after attention and after the perceptron, backward before them (Megatron-LM, arXiv 1909.08053, figure 4)."""


def all_reduce_s(link: LinkSpec, num_bytes: float, n: int) -> float:
    """Return the time of a ring's 2 (n - 1) steps of bytes / n each; nothing for one rank."""
    return 2 * (n - 1) * (link.latency_s + num_bytes / n / link.bytes_per_s) if n > 1 else 0.0


def message_s(link: LinkSpec, num_bytes: float) -> float:
    """Return the time from one rank to another."""
    return link.latency_s + num_bytes / link.bytes_per_s


@dataclass(frozen=True, slots=True)
class PassTime:
    """Hold the time of one pass."""

    compute_s: float = 0.0
    tensor_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Return both together: a rank waits for the sums."""
        return self.compute_s + self.tensor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """Tell what the passes of one stage take, by the units of a micro-batch."""

    work: ModuleWork
    layout: ModuleLayout
    stage: int
    recompute: bool
    device: MimoDevice
    expert_parallel: int = 1
    rates: ModuleRates | None = None
    """What passes of the module took for real, where that is known."""

    def forward(self, num_units: float) -> PassTime:
        """Return the time of a forward pass over that many units."""
        if self.rates is not None:
            return self._measured(self.rates, num_units, False)
        flops = self.work.forward_flops(stage=self.stage, num_stages=self.layout.pp, tp=self.layout.tp)
        return PassTime(num_units * flops / self.device.flops_per_s, self._exchanges_s(num_units, 1, is_forward=True))

    def backward(self, num_units: float) -> PassTime:
        """Return the time of a backward pass over that many units."""
        if not self.work.has_backward:
            return PassTime()
        if self.rates is not None:
            return self._measured(self.rates, num_units, True)
        stage, pp, tp = self.stage, self.layout.pp, self.layout.tp
        flops = self.work.backward_flops(stage=stage, num_stages=pp, tp=tp, recompute=self.recompute)
        if not self.work.layer.backward_share:
            return PassTime(num_units * flops / self.device.flops_per_s)
        rounds = 2 if self.recompute else 1
        return PassTime(num_units * flops / self.device.flops_per_s, self._exchanges_s(num_units, rounds, False))

    def _measured(self, rates: ModuleRates, num_units: float, is_backward: bool) -> PassTime:
        """Return a pass by measured times; a recomputed block runs forward once more."""
        at = (self.work, self.layout, self.stage, num_units)
        total_s, tensor_s = rates.pass_s(*at, is_backward), rates.tensor_s(*at, is_backward)
        if is_backward and self.recompute:
            total_s, tensor_s = total_s + rates.pass_s(*at, False), tensor_s + rates.tensor_s(*at, False)
        return PassTime(total_s - tensor_s, tensor_s)

    def _exchanges_s(self, num_units: float, rounds: int, is_forward: bool) -> float:
        """Return the time of the sums over tp and of the ways to the experts and back; none where there is nothing."""
        if not num_units:
            return 0.0
        num_layers = len(stage_layers(self.work.num_layers, self.stage, self.layout.pp))
        ends = int(self.stage == 0 and is_forward) + int(self.stage == self.layout.pp - 1)
        link, number = self.device.tensor_link, self.device.number_bytes
        one_sum = all_reduce_s(link, num_units * self.work.hidden_numbers * number, self.layout.tp)
        experts = 0.0
        if self.expert_parallel > 1:
            away = (self.expert_parallel - 1) / self.expert_parallel
            num_bytes = num_units * self.work.dispatched_numbers * number / self.layout.tp
            experts = 2 * message_s(self.device.link, away * num_bytes)
        return rounds * num_layers * (SUMS_PER_LAYER * one_sum + experts) + ends * one_sum


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


def peak_memory_bytes(job: MimoJob, at: MimoCandidate) -> float:
    """Return the memory of the fullest rank."""
    num_microbatches = at.layout.num_microbatches(at.micro_batch, job.global_batch)
    num_different = min(num_microbatches, job.period(at.micro_batch * at.language.dp))
    parts: dict[str, list[float]] = {}
    for name, work, module in ((ENCODER, job.encoder, at.encoder), (LANGUAGE, job.language, at.language)):
        lanes = range(1 if job.has_even_items else module.dp)
        units = max(max(units_of(job, at, name, lane, num_different)) for lane in lanes)
        recompute = at.language_recompute if name == LANGUAGE else at.encoder_recompute
        parts[name] = []
        for stage in range(module.pp):
            ahead = 0 if at.is_colocated else at.stages_after(name, stage)
            in_flight = min(ahead + 1, num_microbatches)
            states = state_bytes(work, module, stage, job.device, *_shards(job, at, name))
            kept = activation_numbers(work, module, stage, recompute=recompute) * units * in_flight
            parts[name].append(states + kept * job.device.number_bytes)
    peaks = [max(stages) for stages in parts.values()]
    return sum(peaks) if at.is_colocated else max(peaks)


def state_bytes(
    work: ModuleWork, module: ModuleLayout, stage: int, device: MimoDevice, shards: int = 0, expert_ranks: int = 1
) -> float:
    """Return the bytes of a stage's weights, gradients and optimizer state on one rank; 0 `shards`: one for each tp."""
    shards = shards or module.tp
    replicas = module.dp * module.tp / shards
    trained = device.state_bytes - device.sharded_bytes * (1 - 1 / replicas)
    return sum(
        count * part.params(shards, expert_ranks) * (trained if part.is_trained else device.number_bytes)
        for part, count in work.stage_parts(stage, module.pp)
    )


def activation_numbers(work: ModuleWork, module: ModuleLayout, stage: int, *, recompute: bool) -> float:
    """Return the numbers that one rank keeps of one unit until its backward pass.

    A recomputed block keeps its input only, and one block at a time is there whole. A frozen part that gradients go
    through counts like a trained one, which is a little too much; one without a backward pass keeps nothing.
    """
    numbers = 0.0 if work.layer.backward_share else work.hidden_numbers
    for part, count in work.stage_parts(stage, module.pp):
        if not part.backward_share:
            continue
        if recompute and part is work.layer:
            numbers += count * work.hidden_numbers + part.kept(module.tp)
        else:
            numbers += count * part.kept(module.tp)
    return numbers


def _shards(job: MimoJob, at: MimoCandidate, name: str) -> tuple[int, int]:
    """Return the parts of a module's weights, and of its experts'."""
    return (job.weight_shards, job.expert_ranks(at.expert_parallel)) if name == LANGUAGE else (0, 1)
