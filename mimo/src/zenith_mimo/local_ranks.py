"""CPU ranks on this machine, forked from one process so that torch is imported once for all of them."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from zenith_tune.errors import UsageError, ZenithTuneError

_PR_SET_PDEATHSIG = 1
_REFUSED = 2
"""Exit code of a rank that refuses what it was given."""


def run_ranks(
    world_size: int, work: Callable[[], None], *, timeout: timedelta = timedelta(minutes=5), grace_s: float = 30.0
) -> list[int]:
    """Run `work` on every rank of a gloo world, and return the exit codes once all have ended.

    A rank that fails leaves the others `grace_s` to notice; those that have not ended by then are killed. Call it
    before this process computes anything with torch: the threads of its matrix library would be missing in the ranks,
    and the first product there would wait for them for ever.
    """
    # Optimizers import it at their first use, which would be once in every rank, for seconds.
    importlib.import_module("torch._dynamo")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        pids: list[int] = []
        try:
            sys.stdout.flush()
            for rank in range(world_size):
                pids.append(_start(rank, world_size, work, store, timeout))
            return _wait(pids, grace_s)
        finally:
            for pid in pids:
                _kill(pid)


def _start(rank: int, world_size: int, work: Callable[[], None], store: Path, timeout: timedelta) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _die_with(parent)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timeout
        )
        work()
        dist.destroy_process_group()
        code = 0
    except ZenithTuneError as error:
        # In one write: the ranks share the stream, and a line must stay whole.
        sys.stderr.write(f"error: {error}\n")
        code = _REFUSED if isinstance(error, UsageError) else 1
    except BaseException:
        sys.stderr.write(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A fork must not run the exit handlers of the process it came from.
        os._exit(code)


def _die_with(parent: int) -> None:
    """Have this process killed when its parent is, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _wait(pids: list[int], grace_s: float) -> list[int]:
    codes: dict[int, int] = {}
    deadline = float("inf")
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
                    # Ranks that refuse something say why themselves, all of them.
                    if codes[pid] not in (0, _REFUSED) and set(list(codes.values())[:-1]) <= {0}:
                        sys.stderr.write(f"error: rank {pids.index(pid)} failed first: {_how(codes[pid])}.\n")
                        sys.stderr.flush()
        if any(codes.values()) and deadline == float("inf"):
            deadline = time.monotonic() + grace_s
        time.sleep(0.01)
    for pid in pids:
        if pid not in codes:
            _kill(pid)
            codes[pid] = -signal.SIGKILL
    return [codes[pid] for pid in pids]


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"


def _kill(pid: int) -> None:
    try:
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except ChildProcessError:
        return  # it has ended and was waited for
