"""Runs that the host holds up: layers so small that the GPU waits for the next launch."""

from __future__ import annotations

from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.units import format_seconds

LEAST_SHARE = 0.25
"""Of a planned step that the host adds to the work of the GPU."""
LEAST_SHARE_OF_SLOW = 0.1
"""The same of a run that was measured far slower than planned: a slower host than the calibrated explains it."""
FAR_OVER = 1.5
ACTIONS = (
    "larger micro-batches, less tensor parallelism, fewer and larger layers on each GPU",
    "CUDA graphs (--cuda-graph-impl local for Megatron-LM) or torch.compile, so that a step is launched at once",
    "set CUDA_DEVICE_MAX_CONNECTIONS=1 only where tensor parallelism needs it; bind ranks to the cores near their GPU",
    "collect garbage by hand (--manual-gc), and log less often",
)


def host_bound(run: DiagnosisInput) -> Cause | None:
    """Return how much of a step waits for the host, by the plan, or measured far over a plan that the host limits."""
    share, step_s = run.share("overhead"), run.measured.step_s
    # Beyond NVLink the same part holds waits for other nodes, which is a finding of its own.
    if run.layout.tp > run.cluster.fast_domain or not run.trains:
        return None
    planned_s = run.step_s(run.planned)
    is_slow = step_s is not None and step_s > FAR_OVER * planned_s
    if share < (LEAST_SHARE_OF_SLOW if is_slow else LEAST_SHARE):
        return None
    evidence = [f"planned: {share:.0%} of a step of {format_seconds(planned_s)} is host overhead"]
    if step_s is not None:
        evidence.append(f"measured: {format_seconds(step_s)} a step, {step_s / planned_s:.1f} times the plan")
    return Cause(
        kind=CauseKind.HOST_BOUND,
        finding=f"the GPU waits for the host: launching layers takes longer than computing them, {share:.0%} of a step",
        evidence=tuple(evidence),
        actions=ACTIONS,
        figures={"share": share, **({"over_plan": step_s / planned_s} if step_s is not None else {})},
    )
