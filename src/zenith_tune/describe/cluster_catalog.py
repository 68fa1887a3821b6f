"""Clusters by name: so many GPUs of a kind that the catalog knows, the machine itself, or a file.

A file is TOML, or JSON of the same form, or what nvidia-smi prints on a machine; what is left out is taken from the
machine that the GPU usually comes in:

    gpu = "h100"                                                  # of the catalog, or a table as below
    num_gpus = 64
    gpus_per_node = 8
    fast_domain = 8                                               # GPUs that NVLink joins; 1 where there is none
    fast_link = { bytes_per_s = 450e9, latency_s = 5e-6 }         # one GPU's share, one way
    node_link = { bytes_per_s = 50e9, latency_s = 10e-6 }         # PCIe
    network = { bytes_per_s = 50e9, latency_s = 10e-6 }           # between nodes

    [gpu]                                                         # a GPU that the catalog does not know
    name = "mine"
    memory_gib = 64
    bf16_flops = 400e12
    memory_bytes_per_s = 2e12

A machine's file is written by `(nvidia-smi -L; nvidia-smi topo -m) > FILE`.
"""

from __future__ import annotations

import json
import re
import reprlib
import tomllib
from pathlib import Path
from typing import Any

from zenith_tune.describe.cluster_spec import ClusterSpec, GpuSpec, LinkSpec, even_domain, refuse_counts
from zenith_tune.describe.gpu_catalog import LINKS, find_gpu, gpu_name, gpu_spec, known_gpus, node_fields
from zenith_tune.describe.machine import is_machine, listed_gpus, local_cluster, machine_cluster
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.study.files import read_regular
from zenith_tune.units import GIB

MAX_BYTES = 2**20
MAX_COUNT = 10**7
COUNTS = ("num_gpus", "gpus_per_node", "fast_domain")
KEYS = ("name", "gpu", *COUNTS, *LINKS)
GPU_RATES = ("bf16_flops", "memory_bytes_per_s")
GPU_KEYS = ("name", "memory_gib", *GPU_RATES, "fp8_flops", "fp4_flops", "fp32_flops")
LINK_KEYS = ("bytes_per_s", "latency_s")

Table = dict[str, Any]


def read_cluster(path: Path) -> ClusterSpec:
    """Read a cluster from a file."""
    text = _text(path)
    if is_machine(text):
        return machine_cluster(text, str(path))
    return cluster_from_table(_table(text, path), str(path), default_name=path.stem)


def cluster_from_table(table: Table, source: str, default_name: str) -> ClusterSpec:
    """Return the cluster that a table of the form above describes."""
    _refuse_unknown(table, KEYS, "cluster key")
    known = isinstance(table.get("gpu"), str)
    usual = node_fields(gpu_name(table["gpu"])) if known else {}
    _refuse_missing(table, [key for key in KEYS[1:] if key not in usual], source)
    gpu = gpu_spec(gpu_name(table["gpu"])) if known else _gpu(table["gpu"], source)
    counts: Table = {key: _count(table.get(key, usual.get(key)), key, source) for key in COUNTS}
    refuse_counts(source, **counts)
    links: Table = {key: _link(table[key], key, source) if key in table else usual[key] for key in LINKS}
    return ClusterSpec(name=str(table.get("name", default_name)), gpu=gpu, **counts, **links)


def _gpu(value: object, source: str) -> GpuSpec:
    table = _checked(value, "gpu", source)
    _refuse_unknown(table, GPU_KEYS, "GPU key")
    _refuse_missing(table, ["name", "memory_gib", *GPU_RATES], f"{source}: gpu")
    rates = {key: _number(table[key], key, source) for key in GPU_KEYS[2:] if key in table}
    memory_bytes = round(_number(table["memory_gib"], "memory_gib", source) * GIB)
    return GpuSpec(name=str(table["name"]), memory_bytes=memory_bytes, **rates)


def _link(value: object, name: str, source: str) -> LinkSpec:
    table = _checked(value, name, source)
    _refuse_unknown(table, LINK_KEYS, f"key of {name}")
    _refuse_missing(table, LINK_KEYS, f"{source}: {name}")
    return LinkSpec(**{key: _number(table[key], f"{name}.{key}", source) for key in LINK_KEYS})


def _count(value: object, key: str, source: str) -> int:
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        problem = f"{source}: {key} must be a whole number from 1 to {MAX_COUNT}"
        raise UsageError(f"{problem}, but got {reprlib.repr(value)}", hint="change it")
    return value


def _number(value: object, key: str, source: str) -> float:
    if not isinstance(value, int | float) or value is True or not 0 < value < 1e30:
        raise UsageError(f"{source}: {key} must be a number above 0, but got {reprlib.repr(value)}", hint="change it")
    return float(value)


def _checked(value: object, key: str, source: str) -> Table:
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {key} must be a table, but got {reprlib.repr(value)}", hint="change it")
    return value


def _refuse_unknown(table: Table, known: tuple[str, ...], kind: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownNameError(kind, key, known)


def _refuse_missing(table: Table, needed: list[str] | tuple[str, ...], source: str) -> None:
    if missing := [key for key in needed if table.get(key) is None]:
        raise UsageError(f"{source} must have {', '.join(missing)}, but has not", hint="add what is missing")


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"cluster file {str(path)!r} must be text in UTF-8, but is not", hint="save it so") from None
    except OSError as error:
        problem = f"cluster file {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="check the path") from None


def _table(text: str, path: Path) -> Table:
    is_json = path.suffix.lower() == ".json" or text.lstrip().startswith("{")
    try:
        table = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML, or what `nvidia-smi -L` and `nvidia-smi topo -m` print"
        reason = " ".join(str(error).split())
        raise UsageError(f"cluster file {str(path)!r} must be {kind}, but is not ({reason})", hint="fix it") from None
    return _checked(table, "the cluster", str(path))


LOCAL = "local"
FILE_ENDINGS = (".toml", ".json", ".txt")
_SPELLINGS = (
    re.compile(r"(?P<gpu>[a-z0-9].*?)\s*[x*×:]\s*(?P<count>[0-9]{1,7})"),
    re.compile(r"(?P<count>[0-9]{1,7})\s*[x*×]?\s*(?P<gpu>[a-z0-9].*)"),
)


def load_cluster(text: str, num_gpus: int | None = None) -> ClusterSpec:
    """Return the cluster that `text` names: a GPU and a count, 'local' for this machine, or a path to a file.

    With a number of GPUs a kind alone is enough, and any other name must have as many.

    >>> load_cluster("h100x64").num_nodes, load_cluster("16xA100-40").gpu.name, load_cluster("h100", 64).num_nodes
    (8, 'a100-40', 8)
    """
    if num_gpus is None:
        return _load(text)
    if find_gpu(text):
        return catalog_cluster(text, num_gpus)
    cluster = _load(text)
    if cluster.num_gpus != num_gpus:
        problem = f"cluster {cluster.name!r} has {cluster.num_gpus} GPUs, but got {num_gpus}"
        raise UsageError(problem, hint=f"leave one of them out, or write {cluster.gpu.name}x{num_gpus}")
    return cluster


def _load(text: str) -> ClusterSpec:
    name = text.strip()
    if name.lower() == LOCAL:
        return local_cluster()
    if spelled := _spelled(name.lower()):
        return catalog_cluster(*spelled)
    if path := _path(name):
        return read_cluster(path)
    raise _unknown(name)


def names_one_node(text: str) -> bool:
    """Tell whether `text` is a file with what nvidia-smi printed on one machine."""
    name = text.strip()
    path = None if name.lower() == LOCAL or _spelled(name.lower()) else _path(name)
    return path is not None and bool(listed_gpus(_text(path)))


def names_catalog_cluster(text: str) -> bool:
    """Tell whether `text` is a known GPU and a count, which mean the same everywhere."""
    return _spelled(text.strip().lower()) is not None


def catalog_cluster(gpu: str, num_gpus: int) -> ClusterSpec:
    """Return the cluster of `num_gpus` of the catalog's GPUs in their usual machines."""
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
    """Return the file that `name` is or looks like."""
    try:
        path = Path(name).expanduser()
        if name and (path.is_file() or "/" in name or name.lower().endswith(FILE_ENDINGS)):
            return path
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"cluster {name!r} cannot be looked up ({error})", hint="check the path") from None
    return None


def _unknown(name: str) -> UsageError:
    if find_gpu(name):
        problem = f"cluster {name!r} must say how many GPUs it has, but does not"
        return UsageError(problem, hint=f"write {name.lower()}x8 for eight of them")
    matches = _matches(name.lower())
    if matches:
        return UnknownNameError("GPU", max((match["gpu"] for match in matches), key=len), known_gpus())
    problem = f"cluster {name!r} must be a GPU and a count such as h100x64, 'local', or a file, but is none of them"
    return UsageError(f"{problem}: known GPUs are {', '.join(sorted(known_gpus()))}")
