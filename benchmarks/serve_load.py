"""Measures `zenithtune serve` with a study of many trials: the first page, and what it costs to follow the study.

Writes a study by the real record, each trial with a log, starts the real command in a process of its own, and takes
times by its clock and its CPU by the kernel's. While it is followed, one trial's log grows four times a second and a
trial ends every two seconds.

    python benchmarks/serve_load.py --trials 1000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from datetime import date
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.record.folder import DATABASE_NAME, StudyFolder
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.storage import database_url
from zenith_tune.record.view import StudyHeader
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter
from zenith_tune.study.trial import Outcome, RunKey, Trial
from zenith_tune.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 4096 --use-distributed-optimizer"
LINE = (
    " iteration {:8d}/     100 | elapsed time per iteration (ms): 512.5 | global batch size: 64 | lm loss: 2.0E+00 |\n"
)
SIZES = (1, 2, 4, 8)
FOLLOWED_S = 20.0


class Written:
    """A study that is being written."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.folder = StudyFolder(root, "load")
        self.folder.create()
        self.space: dict[str, Parameter] = {name: CategoricalParameter(SIZES) for name in ("tp", "pp", "cp", "mbs")}
        self.record = StudyRecord(database_url(root / DATABASE_NAME), "load", self.folder)
        args = {"n_gpus": "8", "gbs": "64"}
        header = StudyHeader(preset="megatron", args=args, command=COMMAND, evaluator="megatron step time")
        self.record.create(header, Direction.MAXIMIZE)

    def start(self, index: int) -> int:
        """Begin a trial, with a log."""
        number = self.record.start(self._point(index), self.space, RunKey(f"point {index}"))
        folder = self.folder.trial(number)
        folder.path.mkdir(parents=True)
        folder.command.write_text(f"#!/usr/bin/env bash\n{COMMAND} --trial {number}\n")
        folder.log.write_text("".join(LINE.format(step) for step in range(1, 101)))
        return number

    def finish(self, number: int) -> None:
        """End a trial; every fifth runs out of memory."""
        point = self._point(number)
        if number % 5 == 4:
            cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
            trial = Trial(params=point, outcome=Outcome.OOM, failure="out of memory", cause=cause, duration_s=20.0)
        else:
            value = 50_000.0 + number * 37 % 9000
            memory = (30 + number % 45) * GIB
            trial = Trial(params=point, outcome=Outcome.OK, value=value, unit="tokens/s", spread=0.01, step_s=0.5,
                         peak_memory_bytes=memory, duration_s=60.0)  # fmt: skip
        fields = {name: getattr(trial, name) for name in trial.__dataclass_fields__}
        self.record.finish(Trial(**{**fields, "number": number, "command": f"{COMMAND} --trial {number}"}))

    def _point(self, index: int) -> dict[str, int]:
        return {name: SIZES[index // 4**place % 4] for place, name in enumerate(self.space)}


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(root: Path) -> Iterator[tuple[int, str, float]]:
    """Start the command; yield its pid, its address and when it was started."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "zenith_tune.cli.main", "serve", "load", "--output-dir", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    match = re.search(r"http://\S+", process.stdout.readline())
    assert match is not None
    try:
        yield process.pid, match[0], begun
    finally:
        process.terminate()
        process.wait()


def taken_s(address: str) -> tuple[float, int]:
    """Return how long an answer takes, and its size as it is sent."""
    begun = time.perf_counter()
    request = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=60) as response:
        num_bytes = len(response.read())
    return time.perf_counter() - begun, num_bytes


@contextmanager
def listening(address: str) -> Iterator[list[int]]:
    """Follow a study as an open page does; yield the sizes of the changes that it hears of."""
    is_over, sizes = threading.Event(), list[int]()

    def listen() -> None:
        with urllib.request.urlopen(f"{address}events", timeout=60) as response:
            for line in response:
                if line.startswith(b"data: {") and len(line) > len(b"data: {}\n"):
                    sizes.append(len(line))
                if is_over.is_set():
                    return

    threading.Thread(target=listen, daemon=True).start()
    time.sleep(1)
    yield sizes
    is_over.set()


def follow(study: Written, pid: int, sizes: list[int], num_trials: int) -> dict[str, float]:
    """Write on while a page follows, and return what the server spends."""
    sizes.clear()
    begun, spent_s = time.perf_counter(), cpu_s(pid)
    number, ended = study.start(num_trials), count(num_trials + 1)
    for step in range(1, round(FOLLOWED_S / 0.25)):
        with study.folder.trial(number).log.open("a") as log:
            log.write(LINE.format(100 + step))
        if step % 8 == 0:
            study.finish(number)
            number = study.start(next(ended))
        time.sleep(0.25)
    wall_s = time.perf_counter() - begun
    return {
        "followed_s": wall_s,
        "cpu_ms_per_s": (cpu_s(pid) - spent_s) * 1000 / wall_s,
        "num_changes": len(sizes),
        "median_change_bytes": statistics.median(sizes),
    }


def idle_cpu_ms_per_s(pid: int, seconds: float = 10.0) -> float:
    """Return what the server spends on a page that is open while nothing happens."""
    before = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) * 1000 / seconds


def main() -> None:
    """Write the study, serve it, measure, print and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        study = Written(root)
        for index in range(options.trials):
            study.finish(study.start(index))
        rows = []
        for _ in range(options.repeats):
            with serving(root) as (pid, address, begun):
                listening_s = time.perf_counter() - begun
                first_s, _ = taken_s(f"{address}data.json")
                from_start_s = time.perf_counter() - begun
                again_s, data_bytes = taken_s(f"{address}data.json")
                page_s, page_bytes = taken_s(address)
                rows.append({"listening_s": listening_s, "first_data_s": first_s,
                             "first_data_from_start_s": from_start_s, "data_again_s": again_s, "page_s": page_s,
                             "data_gzip_bytes": data_bytes, "page_gzip_bytes": page_bytes})  # fmt: skip
        with serving(root) as (pid, address, _):
            taken_s(address)
            with listening(address) as sizes:
                idle = idle_cpu_ms_per_s(pid)
                followed = follow(study, pid, sizes, options.trials)
        study.record.close()
    result = {"date": str(date.today()), "python": platform.python_version(), "trials": options.trials,
            "num_cores": os.cpu_count(), "load_average": os.getloadavg()[0], "idle_cpu_ms_per_s": idle,
            "following": followed, "rows": rows}  # fmt: skip
    print(json.dumps(result, indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
