"""One machine as nvidia-smi describes it: the names of its GPUs and the matrix of their links.

The text is what `(nvidia-smi -L; nvidia-smi topo -m) > FILE` saves.
"""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
import signal
import subprocess
import tempfile
from pathlib import Path

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.gpu_catalog import gpu_spec, known_gpus, match_gpu, node_fields
from zenith_tune.describe.topology import cut_gpus, links_of, parse_topology
from zenith_tune.errors import UsageError

SAVE = "(nvidia-smi -L; nvidia-smi topo -m) > FILE"
DESCRIBE = "describe the cluster in a TOML file with gpu, num_gpus and its links"
_LISTED = re.compile(r"^GPU ([0-9]+): (.+?)(?: \(UUID: [^)\n]*\))?[ \t\r]*$", re.MULTILINE)
_MATRIX = re.compile(r"^GPU0[ \t]", re.MULTILINE)


def is_machine(text: str) -> bool:
    """Tell whether a text is from nvidia-smi: a list of GPUs, or a matrix of their links."""
    return bool(listed_gpus(text) or _MATRIX.search(text))


def listed_gpus(text: str) -> list[str]:
    """Return the names of the GPUs that `nvidia-smi -L` lists, or `nvidia-smi nvlink -s`."""
    return [name for _, name in dict.fromkeys(_LISTED.findall(text))]


def machine_cluster(text: str, source: str) -> ClusterSpec:
    """Return the machine that `nvidia-smi -L` and `nvidia-smi topo -m`, one after the other, describe."""
    names = listed_gpus(text)
    if not names:
        problem = f"{source} must list its GPUs before their matrix, as `nvidia-smi -L` does, but does not"
        raise UsageError(problem, hint=f"save it with `{SAVE}`")
    if cut := cut_gpus(text):
        problem = f"{source} must have whole GPUs to train on, but GPU {cut[0]} is cut into MIG instances"
        raise UsageError(f"{problem}: end it with `nvidia-smi -i {cut[0]} -mig 0`, or {DESCRIBE}")
    gpu = _one_kind(names, source)
    # A machine with one GPU needs no matrix.
    topology = parse_topology(text, source) if len(names) > 1 else None
    if topology and topology.num_gpus != len(names):
        problem = f"{source} must have one line in the matrix for each of its {len(names)} GPUs"
        raise UsageError(f"{problem}, but has {topology.num_gpus}", hint=f"save it again with `{SAVE}`")
    usual = node_fields(gpu)
    alone = {"gpus_per_node": 1, "fast_domain": 1, "fast_link": usual["node_link"]}
    fields = {**usual, **(links_of(gpu, topology, usual) if topology else alone)}
    name = f"{gpu}x{len(names)}"
    if topology is not None and fields != usual:
        # By its plain name it would be taken for the catalog's wherever its number of GPUs is changed.
        name += f" as {Path(source).name}"
    return ClusterSpec(name=name, gpu=gpu_spec(gpu), num_gpus=len(names), **fields)


def _one_kind(names: list[str], source: str) -> str:
    kinds = sorted(set(names))
    if len(kinds) > 1:
        raise UsageError(f"{source} must have GPUs of one kind, but has {_quoted(kinds)}: {DESCRIBE} for one of them")
    gpu = match_gpu(kinds[0])
    if gpu is None:
        problem = f"{source} must have GPUs that the catalog knows ({', '.join(sorted(known_gpus()))})"
        raise UsageError(f"{problem}, but has {_quoted(kinds)}: {DESCRIBE}")
    return gpu


def _quoted(names: list[str]) -> str:
    return " and ".join(reprlib.repr(name) for name in names[:4])


TIMEOUT_S = 30.0
"""Eight GPUs without a persistence daemon take some ten seconds; a broken driver never answers."""
HINT = "name the cluster instead, such as h100x8, or give a file"


def local_cluster(timeout_s: float = TIMEOUT_S) -> ClusterSpec:
    """Return this machine's GPUs and their links."""
    listed = nvidia_smi("-L", timeout_s=timeout_s)
    if not listed_gpus(listed):
        raise _refusal(f"must have a GPU, but nvidia-smi lists none ({_message(listed)})")
    matrix = nvidia_smi("topo", "-m", timeout_s=timeout_s) if len(listed_gpus(listed)) > 1 else ""
    return machine_cluster(f"{listed}\n{matrix}", "this machine")


def nvidia_smi(*args: str, timeout_s: float) -> str:
    """Return what nvidia-smi prints; raise UsageError where it is missing, fails or does not answer in time."""
    command = " ".join(["nvidia-smi", *args])
    try:
        status, output = _run(["nvidia-smi", *args], timeout_s)
    except FileNotFoundError:
        raise _refusal("must have nvidia-smi on its PATH, but has not") from None
    except OSError as error:
        raise _refusal(f"must be able to run nvidia-smi, but cannot ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise _refusal(f"must answer `{command}` within {timeout_s:g} s, but does not") from None
    if status:
        raise _refusal(f"must answer `{command}`, but it failed with status {status} ({_message(output)})")
    return output


def _run(command: list[str], timeout_s: float) -> tuple[int, str]:
    """Run a command and return its status and output; kill it with all its children when it is late."""
    # A file instead of a pipe, which a child that outlives the command would hold open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout_s)
        except BaseException:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(1.0)  # a process stuck in the driver does not die
            raise
        output.seek(0)
        return status, output.read().decode("utf-8", errors="replace")


def _message(output: str) -> str:
    return " ".join(output.split())[:200] or "no message"


def _refusal(problem: str) -> UsageError:
    return UsageError(f"cluster 'local': this machine {problem}", hint=HINT)
