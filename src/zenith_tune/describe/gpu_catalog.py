"""GPUs by name: the catalog's figures for each, and for the machine that it usually comes in."""

from __future__ import annotations

import functools
import re
from typing import Any

from zenith_tune.describe.catalog import read_catalog
from zenith_tune.describe.cluster_spec import GpuSpec, LinkSpec
from zenith_tune.errors import UnknownNameError
from zenith_tune.units import GIB

LINKS = ("fast_link", "node_link", "network")
PRICES_OF = "2026-08-22"
"""The date of the catalog's prices."""


def known_gpus() -> list[str]:
    """Return the names of the GPUs in the catalog, without aliases."""
    return list(_entries())


def find_gpu(text: str) -> str | None:
    """Return the catalog's name for a GPU, whatever its case or alias, or None where it is not there."""
    return _names().get(text.strip().lower())


def gpu_name(text: str) -> str:
    """Return the catalog's name for a GPU, or raise with those that are known."""
    name = find_gpu(text)
    if name is None:
        raise UnknownNameError("GPU", text, known_gpus())
    return name


def match_gpu(driver_name: str) -> str | None:
    """Return the catalog's name for the GPU of this driver name."""
    parts = set(re.split(r"[^a-z0-9]+", driver_name.lower()))
    entries = _entries().items()
    return next((name for name, entry in entries if {part.lower() for part in entry["matches"]} <= parts), None)


def gpu_spec(name: str) -> GpuSpec:
    """Return the GPU of the catalog with exactly this name."""
    entry = _entries()[name]
    rates = {key: float(entry[key]) for key in entry if key.endswith("_flops") or key == "memory_bytes_per_s"}
    return GpuSpec(name=name, memory_bytes=round(entry["memory_gib"] * GIB), **rates)


def public_price(name: str) -> float | None:
    """Return what a GPU costs for an hour, in dollars, by the catalog's dated list; None where it has none."""
    price = _entries().get(name, {}).get("usd_per_hour")
    return None if price is None else float(price)


def has_bf16(name: str) -> bool:
    """Tell whether a GPU computes in bfloat16; one that the catalog does not know is taken for a new one."""
    return not _entries().get(name, {}).get("lacks_bf16", False)


def num_nvlinks(name: str) -> int:
    """Return how many NVLinks a GPU has, 0 where the catalog knows of none."""
    return int(_entries().get(name, {}).get("nvlinks", 0))


def nvlink_bytes_per_s(name: str, nvlinks: int) -> float:
    """Return what one GPU sends over so many of its NVLinks, 0 where the catalog knows of none."""
    rate = _entries().get(name, {}).get("nvlink_bytes_per_s", 0.0)
    return float(min(nvlinks, num_nvlinks(name)) * rate)


def node_fields(name: str) -> dict[str, Any]:
    """Return the fields of ClusterSpec that a GPU's usual machine decides."""
    node = read_catalog("clusters")["nodes"][_entries()[name]["node"]]
    return {**node, **{link: LinkSpec(**node[link]) for link in LINKS}}


def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = read_catalog("clusters")["gpus"]
    return entries


@functools.cache
def _names() -> dict[str, str]:
    """Return every spelling in lower case, with the catalog's name for it."""
    return {spelling: name for name, entry in _entries().items() for spelling in (name, *entry.get("aliases", ()))}
