"""Lose a rank in the middle of a step, and print how the others ended as JSON."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.comparison import make_trainer
from tests.mimo.reference import samples_of_step
from tests.mimo.small_models import VISION_LANGUAGE
from zenith_mimo.local_ranks import run_ranks

LAYOUTS = {"pipelined": "4 ranks, llm pp3", "colocated": "colocated tp2 dp2 both"}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
LOST_RANK = 2
TIMEOUT_S = 4.0


def train_and_be_lost(layout: str, signal_number: int) -> None:
    """Train; in the second step one rank, having sent some of its work, stops for ever."""
    trainer = make_trainer(layout, torch.float32, timeout_s=TIMEOUT_S)
    trainer.step(samples_of_step(VISION_LANGUAGE, 0))
    num_calls = 0

    def stop(*_: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            os.kill(os.getpid(), signal_number)

    if dist.get_rank() == LOST_RANK:
        trainer.model.parts["language"].blocks.register_forward_hook(stop)
    for step in range(1, 5):
        trainer.step(samples_of_step(VISION_LANGUAGE, step))


def main() -> None:
    results = {}
    for how, kind in (("killed", "pipelined"), ("killed", "colocated"), ("stopped", "pipelined")):
        work = functools.partial(train_and_be_lost, LAYOUTS[kind], SIGNALS[how])
        begin = time.monotonic()
        codes = run_ranks(4, work, timeout=timedelta(seconds=TIMEOUT_S), grace_s=TIMEOUT_S + 2)
        results[f"{how} {kind}"] = {"codes": codes, "s": time.monotonic() - begin}
    print(json.dumps({"worlds": results, "has_children": has_children()}))


def has_children() -> bool:
    """Return whether a process that this one started is still there, dead or alive."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
