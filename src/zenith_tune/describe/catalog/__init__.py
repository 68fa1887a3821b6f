"""The catalogs of models, GPUs and frameworks: TOML files beside this one."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any


@functools.cache
def read_catalog(name: str) -> dict[str, Any]:
    """Read one of the catalogs, once."""
    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
