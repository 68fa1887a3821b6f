"""One step of modules that share all ranks: encoder, bridge, language model and backward for each micro-batch."""

from __future__ import annotations

from zenith_tune.mimo.module_layout import LANGUAGE
from zenith_tune.planner.mimo.candidate import ENCODER, MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.timeline import PlayedStep, passes_of, units_of
from zenith_tune.planning.mimo_passes import message_s


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
