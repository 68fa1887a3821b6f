"""Writes a line when an optimizer of torch has made a step, in programs that no framework describes.

A copy stands as `sitecustomize.py` in a folder at the front of a trial's PYTHONPATH. It needs nothing but Python 3.8
and leaves a program alone that does not use torch.
"""

from __future__ import annotations

import os
from typing import Any

try:  # the copies beside this one, in the user's process
    from zenithtune_accelerate_hook import measured  # type: ignore[import-not-found]
    from zenithtune_import_hook import run_shadowed, tell, watch  # type: ignore[import-not-found]
except ImportError:
    from zenith_tune.presets.accelerate.hook import measured
    from zenith_tune.presets.import_hook import run_shadowed, tell, watch

RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class StepWatch:
    """Count the steps of the first optimizer that makes one."""

    def __init__(self) -> None:
        self.optimizer: Any = None
        self.num_steps = 0

    def install(self, module: Any) -> None:
        """Stand behind every optimizer, on the first rank."""
        if next((os.environ[name] for name in RANKS if os.environ.get(name)), "0") == "0":
            module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))

    def stepped(self, optimizer: Any) -> None:
        """Tell the time, and the memory so far."""
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:
            self.num_steps += 1
            tell({"event": "step", "step": self.num_steps, "passes": 1, **measured()})


if __name__ == "sitecustomize":
    watch("torch.optim.optimizer", StepWatch().install)
    run_shadowed(__file__)
