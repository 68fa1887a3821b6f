"""Notes when each training step ends and what memory it has taken, in the process that trains.

`zenithtune probe` puts this folder in front of PYTHONPATH, so that Python runs the file before the user's program. It
needs nothing but Python 3.8, waits for torch to be imported, and leaves a program alone that it cannot watch.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from typing import Any

RECORD = "ZENITHTUNE_PROBE_RECORD"
record_path = os.environ.get(RECORD, "")


class WatchImports:
    """Act as soon as a module is loaded, whoever imports it and when."""

    def __init__(self, actions: dict[str, Any]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module as Python would have, and act after it is executed."""
        action = self.actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: Any) -> None:
            load(module)
            action(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def watch_steps(optimizers: Any) -> None:
    """Write a line after every step of an optimizer; those of Apex and Transformer Engine are torch's too."""
    register = getattr(optimizers, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(lambda optimizer, args, kwargs: note_step(id(optimizer)))


def note_step(optimizer: int) -> None:
    """Write one line; a full disk or a device that does not answer ends the measurement, not the training."""
    with contextlib.suppress(OSError, RuntimeError):
        line = json.dumps({"optimizer": optimizer, **measured()})
        with open(record_path, "a") as record:
            record.write(line + "\n")


def measured() -> dict[str, Any]:
    """Return the memory and the time; a step is over when the device has done it."""
    import torch

    found: dict[str, Any] = {}
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found["allocated"] = torch.cuda.max_memory_allocated()
        found["reserved"] = torch.cuda.max_memory_reserved()
        found["device"] = total - free
        found["gpu"] = torch.cuda.get_device_name()
    return {**found, "seconds": time.monotonic()}


def answer_for_rank_0(training: Any) -> None:
    """Let a rank train whose stage has no data: whether to train is for rank 0 to say, which does not run here.

    Megatron sends three flags from rank 0: train, validate, test. A fake process group delivers nothing, and a stage
    between the first and the last, which has built no dataset, would end at once.
    """
    import torch

    deliver = torch.distributed.broadcast

    def broadcast(tensor: Any, src: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = deliver(tensor, src, *args, **kwargs)
        if src == 0 and tensor.dtype is torch.long and tensor.numel() == 3 and not tensor.any():
            tensor[0] = 1
        return result

    torch.distributed.broadcast = broadcast


def run_shadowed() -> None:
    """Run the sitecustomize that this one stands in front of, as Python would have."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if record_path:
    sys.meta_path.insert(
        0, WatchImports({"torch.optim.optimizer": watch_steps, "megatron.training.training": answer_for_rank_0})
    )
run_shadowed()
