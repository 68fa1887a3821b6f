"""Orders to a process that has measured one point of a study and can measure others without a new start.

The tuner leaves an empty file in the folder of the trial where it would have the process wait, and writes the next
point into it. The process takes the file away where it can measure no other. Of several ranks the first reads it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from .process import is_first_rank

MOST_WAIT_S = 60.0
"""The longest time that a process waits for an order: a tuner that was killed sends none."""
PAUSE_S = 0.02


class Orders:
    """The orders to this process, whose hooks are in `folder`."""

    def __init__(self, folder: str) -> None:
        trial = os.path.dirname(os.path.abspath(folder))
        self.path, self.measured = os.path.join(trial, "orders.json"), os.path.join(trial, "measured")

    def are_wanted(self) -> bool:
        """Tell whether the tuner would have the process wait."""
        return os.path.exists(self.path)

    def refuse(self) -> None:
        if is_first_rank() and self.are_wanted():
            os.remove(self.path)

    def has_come(self) -> bool:
        return self.are_wanted() and os.path.getsize(self.path) > 0

    def following(self, share: Any = lambda order: order) -> dict[str, Any] | None:
        """Return what the next point sets, with the output in its own log; None where none comes.

        `share` returns to each rank what the first gives it.
        """
        order: dict[str, Any] | None = share(self.awaited() if is_first_rank() else None)
        if order is None:
            return None
        self.measured = order["measured"]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        found: dict[str, Any] = order["set"]
        return found

    def awaited(self) -> dict[str, Any] | None:
        """Return the next order; None where none comes."""
        if not self.are_wanted():
            return None
        with open(self.measured, "w"):
            pass
        until = time.monotonic() + MOST_WAIT_S
        while not self.has_come():
            if time.monotonic() > until or not self.are_wanted():
                return None
            time.sleep(PAUSE_S)
        with open(self.path, "r+") as file:
            order: dict[str, Any] = json.load(file)
            file.truncate(0)
        return order
