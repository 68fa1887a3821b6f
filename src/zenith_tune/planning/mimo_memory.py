"""What a layout needs on its fullest rank: weights with their optimizer state, and activations in flight."""

from __future__ import annotations

from zenith_tune.mimo.module_layout import LANGUAGE, ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob
from zenith_tune.planner.mimo.timeline import units_of


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
