"""Clusters by name: so many GPUs of a kind that the catalog knows, the machine itself, or a file."""

from __future__ import annotations

import re
from pathlib import Path

from zenith_tune.describe.cluster_file import is_node_file, read_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_name, gpu_spec, known_gpus, node_fields
from zenith_tune.describe.local_cluster import local_cluster
from zenith_tune.describe.node_counts import even_domain, refuse_counts
from zenith_tune.errors import UnknownNameError, UsageError

LOCAL = "local"
FILE_ENDINGS = (".toml", ".json", ".txt")
_SPELLINGS = (
    re.compile(r"(?P<gpu>[a-z0-9].*?)\s*[x*×:]\s*(?P<count>[0-9]{1,7})", re.ASCII),
    re.compile(r"(?P<count>[0-9]{1,7})\s*[x*×]?\s*(?P<gpu>[a-z0-9].*)", re.ASCII),
)


def load_cluster(text: str) -> ClusterSpec:
    """Return the cluster that `text` names: a GPU and a count, 'local' for this machine, or a path to a file.

    >>> load_cluster("h100x64").num_nodes, load_cluster("16xA100-40").gpu.name
    (8, 'a100-40')
    """
    name = text.strip()
    if name.lower() == LOCAL:
        return local_cluster()
    spelled = _spelled(name.lower())
    if spelled:
        return catalog_cluster(*spelled)
    path = _path(name)
    if path is not None:
        return read_cluster(path)
    raise _unknown(name)


def names_one_node(text: str) -> bool:
    """Tell whether `text` is a file with what nvidia-smi says of one machine and its GPUs."""
    name = text.strip()
    path = None if name.lower() == LOCAL or _spelled(name.lower()) else _path(name)
    return path is not None and is_node_file(path)


def catalog_cluster(gpu: str, num_gpus: int) -> ClusterSpec:
    """Return so many of the catalog's GPUs, in their usual machines."""
    gpu = gpu_name(gpu)
    name, fields = f"{gpu}x{num_gpus}", node_fields(gpu)
    counts = {"num_gpus": num_gpus, "gpus_per_node": fields.pop("gpus_per_node")}
    domain = fields.pop("fast_domain")
    refuse_counts(f"cluster {name!r}", **counts, fast_domain=domain)
    return ClusterSpec(
        name=name, gpu=gpu_spec(gpu), fast_domain=even_domain(**counts, fast_domain=domain), **counts, **fields
    )


def _spelled(name: str) -> tuple[str, int] | None:
    """Return the GPU and the count that a name spells, where the GPU is known."""
    # 'mi300x8' is eight of 'mi300' and 'mi300xx8' eight of 'mi300x': the spelling whose GPU is known counts.
    for match in _matches(name):
        if find_gpu(match["gpu"]):
            return match["gpu"], int(match["count"])
    return None


def _matches(name: str) -> list[re.Match[str]]:
    return [match for pattern in _SPELLINGS if (match := pattern.fullmatch(name))]


def _path(name: str) -> Path | None:
    """Return the file that `name` is, or that it must be by its looks."""
    try:
        path = Path(name).expanduser()
        if name and (path.is_file() or "/" in name or name.lower().endswith(FILE_ENDINGS)):
            return path
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"cluster {name!r} cannot be looked up ({error}): check the path") from None
    return None


def _unknown(name: str) -> UsageError:
    if find_gpu(name):
        law = f"cluster {name!r} must say how many GPUs it has, but does not"
        return UsageError(f"{law}: write {name.lower()}x8 for eight of them")
    matches = _matches(name.lower())
    if matches:
        return UnknownNameError("GPU", max((match["gpu"] for match in matches), key=len), known_gpus())
    law = f"cluster {name!r} must be a GPU and a count such as h100x64, 'local', or a file, but is none of them"
    return UsageError(f"{law}: known GPUs are {', '.join(sorted(known_gpus()))}")
