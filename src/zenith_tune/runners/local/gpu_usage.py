"""How busy a trial keeps its GPUs and what power they draw, by looking at nvidia-smi now and then."""

from __future__ import annotations

import shutil
import statistics
import threading
from collections.abc import Sequence

from zenith_tune.describe.machine import nvidia_smi
from zenith_tune.errors import UsageError

INTERVAL_S = 2.0
"""Seconds between two looks: a trial must not feel them."""
UTILIZATION, POWER = "gpu_utilization", "gpu_power_w"
"""Names under `extra` of a trial: a share of the time, and the watts of one GPU."""

GpuSample = tuple[str, float, float | None]
"""A GPU, the share of the time that it was busy, and its watts where it reports them."""


def parse_samples(text: str) -> list[GpuSample]:
    """Return a sample for each GPU that reports how busy it is."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        (row[0], float(row[1]) / 100, float(row[2]) if _is_number(row[2]) else None)
        for row in rows
        if len(row) == 3 and _is_number(row[1])
    ]


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def usage_of(samples: Sequence[GpuSample]) -> dict[str, float]:
    """Return the medians over the looks that found a GPU busy: most of a short trial is its start."""
    busy = [(share, power) for _, share, power in samples if share > 0]
    found = {UTILIZATION: [share for share, _ in busy], POWER: [power for _, power in busy if power is not None]}
    return {name: round(statistics.median(values), 3) for name, values in found.items() if values}


class GpuWatch:
    """A look at the GPUs of one trial now and then until it ends; without nvidia-smi there is none."""

    def __init__(self, gpus: Sequence[str] | None = None) -> None:
        """Begin to look at `gpus`; None stands for all of the machine."""
        self._which = () if gpus is None else ("-i", ",".join(gpus))
        self._samples: list[GpuSample] = []
        self._ended = threading.Event()
        if gpus != () and shutil.which("nvidia-smi") is not None:
            threading.Thread(target=self._look, name="zenithtune-gpus", daemon=True).start()

    def end(self) -> dict[str, float]:
        """Stop looking, and return what was seen."""
        self._ended.set()
        return usage_of(list(self._samples))

    def _look(self) -> None:
        query = ("--query-gpu=index,utilization.gpu,power.draw", "--format=csv,noheader,nounits", *self._which)
        while not self._ended.wait(INTERVAL_S):
            try:
                found = parse_samples(nvidia_smi(*query, timeout_s=5.0))
            except (UsageError, OSError):
                return  # a driver that does not answer now is not asked again and again
            if not self._ended.is_set():
                self._samples += found
