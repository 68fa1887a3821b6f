"""Reports each step of a torch optimizer, in programs that no framework describes."""

from __future__ import annotations

from typing import Any

from .process import is_first_rank, measured, report, watch


class StepWatch:
    """The steps of the first optimizer that makes one."""

    def __init__(self) -> None:
        self.optimizer: Any = None
        self.num_steps = 0

    def install(self, module: Any) -> None:
        """Watch every optimizer, on the first rank."""
        if is_first_rank():
            module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped(optimizer))

    def stepped(self, optimizer: Any) -> None:
        """Report the time, and the memory so far."""
        self.optimizer = self.optimizer or optimizer
        if optimizer is self.optimizer:
            self.num_steps += 1
            report({"event": "step", "step": self.num_steps, "passes": 1, **measured()})


def start(settings: dict[str, Any], folder: str) -> None:
    """Watch from when torch is loaded."""
    watch("torch.optim.optimizer", StepWatch().install)
