"""Torch, imported only where a .bin file is read or written."""

from __future__ import annotations

import importlib
from typing import Any

from zenith_tune.errors import UsageError


def import_torch(why: str) -> Any:
    """Return torch, or refuse in one line that names the extra."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        cure = "install 'zenith-tune[checkpoint]', or use .safetensors"
        raise UsageError(f"{why}, which needs torch, but torch is not installed: {cure}") from None
