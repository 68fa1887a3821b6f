"""What one rank of a layout measured: its memory and its work, without anybody to talk to."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.study.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProbe:
    """Hold one stage of a pipeline as it ran alone."""

    stage: int
    rank: int
    outcome: Outcome
    cause: str = ""
    """Why it failed, in one line."""
    num_micro_batches: int
    """Per step of the probe."""
    step_s: float | None = None
    """Seconds of a step of so many micro-batches."""
    num_steps: int = 0
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    gpu: str = ""
    source: str = ""
    """Who told: the hook inside the process, its log, or nvidia-smi."""
    duration_s: float = 0.0
    command: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether it trained."""
        return self.outcome is Outcome.OK

    @property
    def peak_bytes(self) -> int | None:
        """The best figure of its peak: allocated, else reserved, else all that the device had in use."""
        return self.allocated_bytes or self.reserved_bytes or self.device_bytes
