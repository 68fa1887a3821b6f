"""The machine that this runs on, as its own nvidia-smi describes it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.machine import listed_gpus, machine_cluster
from zenith_tune.errors import UsageError

TIMEOUT_S = 30.0
"""A machine with eight GPUs and no persistence daemon takes some ten seconds; a broken driver takes for ever."""
CURE = "name the cluster instead, such as h100x8, or give a file"


def local_cluster(timeout_s: float = TIMEOUT_S) -> ClusterSpec:
    """Return this machine's GPUs and their links."""
    listed = nvidia_smi("-L", timeout_s=timeout_s)
    if not listed_gpus(listed):
        raise _refusal(f"must have a GPU, but nvidia-smi lists none ({_words(listed)})")
    matrix = nvidia_smi("topo", "-m", timeout_s=timeout_s) if len(listed_gpus(listed)) > 1 else ""
    return machine_cluster(f"{listed}\n{matrix}", "this machine")


def nvidia_smi(*args: str, timeout_s: float) -> str:
    """Return what nvidia-smi says; raises UsageError where it is missing, fails or does not answer in time."""
    command = " ".join(["nvidia-smi", *args])
    try:
        status, said = _run(["nvidia-smi", *args], timeout_s)
    except FileNotFoundError:
        raise _refusal("must have nvidia-smi on its PATH, but has not") from None
    except OSError as error:
        raise _refusal(f"must be able to run nvidia-smi, but cannot ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise _refusal(f"must answer `{command}` within {timeout_s:g} s, but does not") from None
    if status:
        raise _refusal(f"must answer `{command}`, but it failed with status {status} ({_words(said)})")
    return said


def _run(command: list[str], timeout_s: float) -> tuple[int, str]:
    """Run a command and return its status and what it said; one that is too late is killed with all its children."""
    # A file and not a pipe: a child that outlives the command would hold a pipe open for ever.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout_s)
        except BaseException:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(1.0)  # no longer: what is stuck in the driver does not die
            raise
        output.seek(0)
        return status, output.read().decode("utf-8", errors="replace")


def _words(said: str) -> str:
    """Return the beginning of what a command said, in one line."""
    return " ".join(said.split())[:200] or "no message"


def _refusal(law: str) -> UsageError:
    return UsageError(f"cluster 'local': this machine {law}: {CURE}")
