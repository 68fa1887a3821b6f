"""What was measured of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zenith_tune.units import GIB, MIB

# PyTorch 2.1 spells it "capacty"; releases before put the figure first.
_CAPACITY = re.compile(r"total capaci?ty of ([\d.]{1,12}) ([GM])iB|([\d.]{1,12}) ([GM])iB total capacity")
_BYTES = {"G": GIB, "M": MIB}


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

        >>> Measured(cause="CUDA out of memory. GPU 0 has a total capacity of 79.50 GiB").capacity_bytes / GIB
        79.5
        """
        found = _CAPACITY.search(self.cause)
        if found is None:
            return None
        number, unit = (group for group in found.groups() if group is not None)
        try:
            return float(number) * _BYTES[unit]
        except ValueError:  # "1.2.3"
            return None
