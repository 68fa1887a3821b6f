"""How much memory of the GPUs is in use, as nvidia-smi tells it: what is left where a rank says nothing of itself."""

from __future__ import annotations

import os
import shutil
import subprocess

from zenith_tune.units import MIB

TIMEOUT_S = 10.0


class UsedMemory:
    """Ask again and again, and keep the most."""

    def __init__(self) -> None:
        self._program = shutil.which("nvidia-smi")
        self._most: int | None = None

    def look(self) -> None:
        """Ask once; a machine without an answer is not asked again."""
        if self._program is None:
            return
        # A rank under probe runs on the first GPU that it can see.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or "0"
        query = [self._program, f"--id={first}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=True)
            used = int(said.stdout.split()[0]) * MIB
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            self._program = None
            return
        self._most = max(used, self._most or 0)

    @property
    def most_bytes(self) -> int | None:
        """The most that was seen, by whomever it was used; None where nobody could tell."""
        return self._most
