"""Records when each training step ends and what memory it has taken, in a rank under probe."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from .process import watch


def record_steps(optimizers: Any, path: str) -> None:
    """Write a line after every step of an optimizer; those of Apex and Transformer Engine are torch's too."""

    def record(optimizer: Any, args: Any, kwargs: Any) -> None:
        # A full disk or a device that does not answer ends the measurement, not the training.
        with contextlib.suppress(OSError, RuntimeError):
            line = json.dumps({"optimizer": id(optimizer), **measured()})
            with open(path, "a") as file:
                file.write(line + "\n")

    optimizers.register_optimizer_step_post_hook(record)


def measured() -> dict[str, Any]:
    """Return the memory and the time; a step ends when the device has finished it."""
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
    """Let a rank train whose stage has no data: rank 0 decides whether to train, and does not run here.

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


def start(settings: dict[str, Any], folder: str) -> None:
    """Watch from when torch and Megatron are loaded."""
    watch("torch.optim.optimizer", lambda module: record_steps(module, settings["record"]))
    watch("megatron.training.training", answer_for_rank_0)
