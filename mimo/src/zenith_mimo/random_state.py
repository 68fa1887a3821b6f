"""The state of the random numbers of this process, as plain values that a checkpoint can hold."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def random_state(device: str) -> dict[str, Any]:
    """Return the state of Python's, torch's, the device's and, where it is in use, NumPy's random numbers."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.device(device).type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state()
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Take over what `random_state` returned, of the generators that are here."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
