"""Lets a run of Megatron begin with steps of fewer micro-batches, by which that of the whole batch is known sooner."""

from __future__ import annotations

import datetime
import functools
import json
import sys
import time
from typing import Any

from .process import PREFIX, watch

MODULE = "megatron.core.num_microbatches_calculator"
WAIT_S = 10.0
"""The longest that ranks wait for one another before the first step."""
PRESENT, ANSWER = "zenithtune_short_steps", "zenithtune_short_steps_agreed"


class ShortSteps:
    """The first steps of a training loop, each with its own number of micro-batches; then the whole number."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        """The numbers, the whole one, and what the tuner says of them."""
        self.left: list[int] | None = None
        """Numbers of the steps to come; None before the first one."""
        self.now: int | None = None
        """The number of the step that runs; None for the whole one, and between steps."""
        self.is_due = False
        """Whether the loop is about to begin a step."""

    def install(self, module: Any) -> None:
        """Wrap the calculator of a constant batch: one that changes as it trains is left alone."""
        kind = module.ConstantNumMicroBatchesCalculator
        get, update = kind.get, kind.update

        @functools.wraps(get)
        def short_get(this: Any) -> Any:
            return self.now or get(this)

        @functools.wraps(update)
        def noted_update(this: Any, samples: int, check: bool, *more: Any, **named: Any) -> None:
            update(this, samples, check, *more, **named)
            self.updated(this, check)

        kind.get, kind.update = short_get, noted_update

    def updated(self, calculator: Any, check: bool) -> None:
        """Begin a step where the loop updates with the check, having done so without.

        Between these it compares the number with that of the step before: another one would be refused, or saved as a
        checkpoint. So it finds the whole number there.
        """
        if not check:
            self.now, self.is_due = None, True
        elif self.is_due:
            self.is_due = False
            if self.left is None:
                self.left = self.started(calculator)
            self.now = self.left.pop(0) if self.left else None

    def started(self, calculator: Any) -> list[int]:
        """Return the numbers and print them where Megatron prints its steps; none where they are not for this run."""
        torch = sys.modules.get("torch")
        group = torch.distributed if torch is not None and torch.distributed.is_initialized() else None
        if calculator.get() != self.settings["whole"] or not (group is None or is_everywhere(group)):
            return []
        if group is None or group.get_rank() == group.get_world_size() - 1:
            batch = calculator.get_current_running_global_batch_size()
            print(PREFIX + json.dumps({"short_steps": {**self.settings, "batch": batch}}), flush=True)
        return list(self.settings["numbers"])


def is_everywhere(group: Any) -> bool:
    """Tell whether all ranks have this hook, as the first rank finds: with different numbers they would hang."""
    store = group.distributed_c10d._get_default_store()
    store.add(PRESENT, 1)
    if group.get_rank() == 0:
        end = time.monotonic() + WAIT_S
        while store.add(PRESENT, 0) < group.get_world_size() and time.monotonic() < end:
            time.sleep(0.01)
        store.set(ANSWER, str(store.add(PRESENT, 0) == group.get_world_size()))
    try:
        store.wait([ANSWER], datetime.timedelta(seconds=2 * WAIT_S))
    except RuntimeError:  # the first rank is without
        return False
    return bool(store.get(ANSWER) == b"True")


def start(settings: dict[str, Any], folder: str) -> None:
    """Watch from when Megatron Core is loaded."""
    watch(MODULE, ShortSteps(settings).install)
