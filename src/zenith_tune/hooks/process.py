"""What hooks do in the user's process: act when a module is imported, measure a step, and write lines into the log."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import json
import os
import sys
import time
from typing import Any

PREFIX = "zenithtune: "
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables by which launchers number their processes."""
MOST_TIMES, STEPS_S = 5, 10.0
"""So many times its updates a trial makes at most on a GPU, until they have taken so long: with batches of many
lengths, memory and kernels take a while to settle."""


class WatchImports:
    """An import hook that acts once, as soon as a module is loaded."""

    def __init__(self, name: str, action: Any) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module as Python would have, and act after it is executed."""
        if name != self.name:
            return None
        self.name = ""
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: Any) -> None:
            load(module)
            with contextlib.suppress(AttributeError):  # a module of another shape is left alone
                self.action(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def watch(name: str, action: Any) -> None:
    """Act on a module once it is loaded, which a .pth file may have done before any sitecustomize runs."""
    if name in sys.modules:
        with contextlib.suppress(AttributeError):
            action(sys.modules[name])
    else:
        sys.meta_path.insert(0, WatchImports(name, action))


def report(event: dict[str, Any]) -> None:
    """Write one line in one piece, so that those of other ranks do not run into it."""
    os.write(2, f"{PREFIX}{json.dumps(event)}\n".encode())


def is_first_rank() -> bool:
    """Tell whether this process is the first of the job, as far as its environment says."""
    return next((os.environ[name] for name in RANKS if os.environ.get(name)), "0") == "0"


def process_name() -> str:
    """Return what tells this process from the others of the job."""
    return f"{os.uname().nodename}:{os.getpid()}"


def with_values(method: Any, values_for: Any) -> Any:
    """Return a constructor with other arguments, whatever the program gives for them; unknown ones are left out.

    `values_for` returns them, given those of the program by their names.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(this, *args, **kwargs)
        values = values_for(given.arguments).items()
        given.arguments.update({name: value for name, value in values if name in signature.parameters})
        method(*given.args, **given.kwargs)

    return made


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: the value of an enumeration, and the class of any other object."""
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def measured() -> dict[str, Any]:
    """Return the time and the peak of memory; a step ends when the device has finished it."""
    import torch

    found: dict[str, Any] = {}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        found["peak_bytes"] = torch.cuda.max_memory_reserved()
    return {**found, "seconds": time.monotonic()}


def compute_capability() -> int:
    """Return the GPU's compute capability times ten; 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return int(10 * major + minor)
