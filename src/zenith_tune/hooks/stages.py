"""Reports what the start of a training is made of: launching, imports, building model and data, the first step."""

from __future__ import annotations

import os
import time
from typing import Any

from .process import is_first_rank, report, watch

BEGAN = "ZENITHTUNE_BEGAN"
"""The variable with the time at which the first interpreter of a command started, which may be a launcher's."""
FRAMEWORKS = (
    *("torch", "accelerate.accelerator", "transformers.trainer", "deepspeed", "torchtitan.train"),
    *("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer", "megatron.training.training"),
)
"""Modules that are imported before anything is built."""
STAGES = ("launch", "imports", "building", "first_step")


class Stages:
    """The times at which the stages of a start end."""

    def __init__(self) -> None:
        now = time.time()
        self.ends = {"began": float(os.environ.setdefault(BEGAN, str(now))), "launch": now}
        self.is_over = False

    def note(self, stage: str) -> None:
        """Note that a stage has ended, or a part of it; what is imported later is a part of the stage that it is in."""
        if stage != "imports" or "building" not in self.ends:
            self.ends[stage] = time.time()

    def install_loader(self, module: Any) -> None:
        """Take the first batch of a DataLoader for the end of building."""
        kind = module._BaseDataLoaderIter
        fetch = kind.__next__

        def fetched(this: Any) -> Any:
            kind.__next__ = fetch
            batch = fetch(this)
            self.note("building")
            return batch

        kind.__next__ = fetched

    def install_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(lambda *given: self.stepped())

    def stepped(self) -> None:
        """Report the seconds of each stage, once."""
        if self.is_over:
            return
        self.is_over = True
        self.note("first_step")
        seconds, before = {}, self.ends["began"]
        for stage in filter(self.ends.get, STAGES):
            seconds[stage] = round(self.ends[stage] - before, 2)
            before = self.ends[stage]
        report({"event": "start", "seconds": seconds})


def start(folder: str) -> None:
    """Watch the first rank; a launcher is taken for it, and makes no step."""
    if is_first_rank():
        stages = Stages()
        for name in FRAMEWORKS:
            watch(name, lambda module: stages.note("imports"))
        watch("torch.utils.data.dataloader", stages.install_loader)
        watch("torch.optim.optimizer", stages.install_optimizers)
