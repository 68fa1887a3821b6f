"""The step time and the memory of a layout, and all layouts of a job by them, the fastest first."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from zenith_mimo.planning.bound import LeastTimes
from zenith_mimo.planning.candidate import MimoCandidate, mimo_candidates, recomputing
from zenith_mimo.planning.config import LANGUAGE, ModuleLayout
from zenith_mimo.planning.job import ENCODER, MODULES, MimoDevice, MimoJob
from zenith_mimo.planning.timeline import all_reduce_s, all_units, passes_of, place_ranks, step_time
from zenith_mimo.planning.work import ModuleWork
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPrediction:
    """A step's time by cause, each as an average over the ranks, and the pace of both modules."""

    candidate: MimoCandidate
    compute_s: float
    tensor_s: float
    """Sums over tensor-parallel groups, and ways to experts."""
    idle_s: float
    """Waiting: for the pipeline to fill and drain, for the slower module, for lanes with more items."""
    sync_s: float
    """Gradients summed over replicas, and the optimizer."""
    encoder_stage_s: float
    """Time of a micro-batch, forward and backward, on the encoder's slowest stage."""
    language_stage_s: float
    num_microbatches: int
    memory_bytes: float

    @property
    def step_s(self) -> float:
        """The time of a step."""
        return self.compute_s + self.tensor_s + self.idle_s + self.sync_s

    @property
    def idle_share(self) -> float:
        """The part of the step that an average rank waits."""
        return self.idle_s / self.step_s


def predict(job: MimoJob, candidate: MimoCandidate) -> MimoPrediction:
    """Return the prediction of a layout that may run."""
    num = candidate.layout.num_microbatches(candidate.micro_batch, job.global_batch)
    time = step_time(job, candidate, num)
    busy_s = time.compute_s + time.tensor_s
    return MimoPrediction(
        candidate=candidate,
        compute_s=time.compute_s,
        tensor_s=time.tensor_s,
        # Ranks that share cores take turns, so that a step takes at least the work of all of them, and waiting costs
        # nothing as long as another rank computes.
        idle_s=max(time.span_s, busy_s / job.device.share) - busy_s,
        sync_s=_sync_s(job, candidate),
        encoder_stage_s=_stage_s(job, candidate, ENCODER, num),
        language_stage_s=_stage_s(job, candidate, LANGUAGE, num),
        num_microbatches=num,
        memory_bytes=peak_memory_bytes(job, candidate),
    )


def _sync_s(job: MimoJob, candidate: MimoCandidate) -> float:
    return max(_sums_s(job, candidate, name) for name in MODULES) + _update_s(job, candidate)


def _stage_s(job: MimoJob, candidate: MimoCandidate, name: str, num: int) -> float:
    num = min(num, job.period(candidate.micro_batch * candidate.language.dp))
    units = max(map(sum, all_units(job, candidate, name, num))) / num
    stages = [passes_of(job, candidate, name, stage) for stage in range(candidate.module(name).pp)]
    return max(passes.forward(units).total_s + passes.backward(units).total_s for passes in stages)


def _sums_s(job: MimoJob, candidate: MimoCandidate, name: str) -> float:
    """Return the time of summing a module's gradients over its replicas."""
    module = candidate.module(name)
    params = max(_trained_params(job, candidate, name))
    replicas = ([place_ranks(module, lane, stage)[0] for lane in range(module.dp)] for stage in range(module.pp))
    link = job.device.link_between(replicas)
    return all_reduce_s(link, params * job.device.number_bytes, module.dp) if params else 0.0


def _update_s(job: MimoJob, candidate: MimoCandidate) -> float:
    """Return the optimizer's time: of the rank with the most parameters, or of all on the cores that they share."""
    device = job.device
    if not device.update_s:
        return 0.0
    most, total = [], 0.0
    for name in MODULES:
        module = candidate.module(name)
        owners = module.dp if device.sharded_bytes else 1
        params = [params / owners for params in _trained_params(job, candidate, name)]
        most.append(max(params))
        total += sum(params) * module.tp * module.dp
    busiest = sum(most) if candidate.is_colocated else max(most)
    return device.update_s * max(busiest, total / job.num_ranks / device.share)


def _trained_params(job: MimoJob, candidate: MimoCandidate, name: str) -> list[float]:
    """Return the trained parameters of a rank of each stage."""
    work, module = job.work(name), candidate.module(name)
    return [
        sum(
            count * part.params(module.tp, candidate.expert_parallel)
            for part, count in work.stage_parts(stage, module.pp)
            if part.is_trained
        )
        for stage in range(module.pp)
    ]


def peak_memory_bytes(job: MimoJob, candidate: MimoCandidate) -> float:
    """Return the memory of the fullest rank."""
    layout = candidate.layout
    num_microbatches = layout.num_microbatches(candidate.micro_batch, job.global_batch)
    num_different = min(num_microbatches, job.period(candidate.micro_batch * candidate.language.dp))
    peaks = []
    for name in MODULES:
        work, module = job.work(name), candidate.module(name)
        units = max(map(max, all_units(job, candidate, name, num_different)))
        shards, expert_ranks = 0, 1
        if name == LANGUAGE:
            shards, expert_ranks = job.weight_shards, job.expert_ranks(candidate.expert_parallel)
        stages = []
        for stage in range(module.pp):
            in_flight = 1 if candidate.is_colocated else min(layout.stages_after(name, stage) + 1, num_microbatches)
            states = state_bytes(work, module, stage, job.device, shards, expert_ranks)
            kept = activation_numbers(work, module, stage, recompute=candidate.recomputes(name)) * units * in_flight
            stages.append(states + kept * job.device.number_bytes)
        peaks.append(max(stages))
    return sum(peaks) if candidate.is_colocated else max(peaks)


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


MOST_SIMULATED = 30
"""Layouts of a kind whose schedules are simulated; of the others only those that could clearly be the fastest."""
CLEARLY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPlan:
    """The ranking of layouts, and the numbers of those left out: for their memory, and because they must be slower."""

    ranked: tuple[MimoPrediction, ...]
    num_too_large: int
    num_slower: int = 0

    @property
    def homogeneous(self) -> list[MimoPrediction]:
        """Those in which both modules have the same degrees, the fastest first."""
        return [each for each in self.ranked if each.candidate.is_homogeneous]

    def find(self, candidate: MimoCandidate) -> MimoPrediction | None:
        """Return the prediction of a layout, where it is planned."""
        return next((each for each in self.ranked if each.candidate == candidate), None)


def plan_mimo(job: MimoJob, *, mbs_max: int = 4, expert_parallel: tuple[int, ...] = (1,)) -> MimoPlan:
    """Rank the layouts that may run and fit, the fastest of each kind; what does not fit is tried with recomputation.

    Raises UsageError where none is left.
    """
    fitting, too_large = _bounded(job, mbs_max, expert_parallel)
    found: list[MimoPrediction] = []
    num_simulated: Counter[tuple[bool, bool, bool]] = Counter()
    best_s = math.inf
    for least_s, candidate in fitting:
        if num_simulated[candidate.kind] < MOST_SIMULATED or least_s < (1 - CLEARLY) * best_s:
            num_simulated[candidate.kind] += 1
            found.append(predict(job, candidate))
            best_s = min(best_s, found[-1].step_s)
    num_slower = len(fitting) - len(found)
    return MimoPlan(ranked=tuple(sorted(found, key=_rank)), num_too_large=too_large, num_slower=num_slower)


def _bounded(
    job: MimoJob, mbs_max: int, expert_parallel: tuple[int, ...]
) -> tuple[list[tuple[float, MimoCandidate]], int]:
    """Return the layouts that fit with their least steps, the least first, and the number of those that do not."""
    least = LeastTimes(job)
    fitting: list[tuple[float, MimoCandidate]] = []
    too_large: list[float] = []
    for candidate in mimo_candidates(job, mbs_max=mbs_max, expert_parallel=expert_parallel):
        chosen, needed = _fitting(job, candidate, least)
        if chosen is None:
            too_large.append(needed)
        else:
            fitting.append((least.of(chosen) + _sync_s(job, chosen), chosen))
    if not fitting:
        raise _nothing_left(job, too_large)
    return sorted(fitting, key=lambda pair: pair[0]), len(too_large)


def _fitting(job: MimoJob, candidate: MimoCandidate, least: LeastTimes) -> tuple[MimoCandidate | None, float]:
    """Return a layout with the recomputation that fits and costs least, and the least memory that any of them needs."""
    plain, *others = recomputing(job, candidate)
    needed = peak_memory_bytes(job, plain)
    if needed <= job.device.memory_bytes:  # recomputation never makes a step faster
        return plain, needed
    sizes = {each: peak_memory_bytes(job, each) for each in others}
    fits = [each for each, size in sizes.items() if size <= job.device.memory_bytes]
    return min(fits, key=least.of, default=None), min([needed, *sizes.values()])


def _rank(each: MimoPrediction) -> tuple[float, float, str]:
    """Order by time, then by what is left of the memory; names break what ties are left."""
    return (each.step_s, each.memory_bytes, each.candidate.label)


def _nothing_left(job: MimoJob, too_large: list[float]) -> UsageError:
    if not too_large:
        problem = f"{job.num_ranks} ranks and a global batch of {job.global_batch} allow no layout of both modules"
        return UsageError(problem, hint="change one of them")
    problem = f"a layout must fit the {job.device.memory_bytes / 2**30:.3g} GiB of a device"
    smallest = f"but the smallest of {len(too_large)} needs {min(too_large) / 2**30:.3g} GiB"
    return UsageError(f"{problem}, {smallest}", hint="take more ranks")


MOST_BATCHES = 6
"""Other batches that are planned for a suggestion."""
MOST_PROMISING = 3
"""Layouts of each that are simulated."""
WIDEST_BATCH = 1.25
LEAST_GAIN = 0.05


def better_batch(
    job: MimoJob, plan: MimoPlan, *, mbs_max: int = 4, expert_parallel: tuple[int, ...] = (1,)
) -> tuple[int, MimoPrediction] | None:
    """Return a global batch near the job's, and its best layout, that takes clearly less time for each sample.

    That is where what divides the batch keeps the ranks from being split in balance. None where nothing gains.
    """
    least, batch = plan.ranked[0].step_s / job.global_batch, job.global_batch
    lanes = {dp for ranks in range(1, job.num_ranks + 1) for dp in divisors(ranks)}
    near = {batch // dp * dp for dp in lanes} | {-(-batch // dp) * dp for dp in lanes}
    wanted = [size for size in near if batch / WIDEST_BATCH <= size <= batch * WIDEST_BATCH and size not in (0, batch)]
    best = None
    for size in sorted(wanted, key=lambda size: (abs(size - batch), size))[:MOST_BATCHES]:
        try:
            other = replace(job, global_batch=size)
            promising = _bounded(other, mbs_max, expert_parallel)[0][:MOST_PROMISING]
        except UsageError:
            continue
        first = min((predict(other, candidate) for _, candidate in promising), key=_rank)
        if first.step_s / size < (1 - LEAST_GAIN) * least:
            least, best = first.step_s / size / (1 - LEAST_GAIN), (size, first)
    return best
