"""How much memory of the GPUs is in use, as nvidia-smi tells it: what is left where a rank says nothing of itself."""

from __future__ import annotations

import os

from zenith_tune.describe.local_cluster import nvidia_smi
from zenith_tune.errors import UsageError
from zenith_tune.units import MIB

TIMEOUT_S = 10.0


class UsedMemory:
    """Ask again and again, and keep the most."""

    def __init__(self) -> None:
        self._answers = True
        self._most: int | None = None

    def look(self) -> None:
        """Ask once; a machine without an answer is not asked again."""
        if not self._answers:
            return
        # A rank under probe runs on the first GPU that it can see.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or "0"
        query = (f"--id={first}", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        try:
            used = int(nvidia_smi(*query, timeout_s=TIMEOUT_S).split()[0]) * MIB
        except (UsageError, ValueError, IndexError):
            self._answers = False
            return
        self._most = max(used, self._most or 0)

    @property
    def most_bytes(self) -> int | None:
        """The most that was seen, by whomever it was used; None where nobody could tell."""
        return self._most
