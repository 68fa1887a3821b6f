"""What was measured of a run."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.evaluators.failed_allocation import FailedAllocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold what a log or a trial says of a run; what it does not say is None."""

    step_s: float | None = None
    peak_bytes: float | None = None
    """The most that any rank's allocator reserved."""
    out_of_memory: bool = False
    cause: str = ""
    """Why it failed, in one line, where it did."""

    @property
    def capacity_bytes(self) -> float | None:
        """The memory of the GPU that ran out, where PyTorch says it.

        >>> Measured(cause="CUDA out of memory. GPU 0 has a total capacity of 79.50 GiB").capacity_bytes / 2**30
        79.5
        """
        return FailedAllocation.of(self.cause).capacity_bytes
