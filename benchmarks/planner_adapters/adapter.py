"""What every adapter of another planner shares: rows in as JSON, predictions out, or why there is none.

An adapter runs in the interpreter of its planner, `python run_NAME.py TREE`, and needs nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Mapping[str, Any]]
Prediction = dict[str, float | str]


LIMIT_S = 20.0
"""CPU seconds that a planner has for one row."""


class CannotExpressError(Exception):
    """Say in few words why a planner cannot express a row."""


def need(holds: bool, reason: str) -> None:
    """Raise CannotExpressError unless something holds."""
    if not holds:
        raise CannotExpressError(reason)


def is_half(row: Row) -> bool:
    """Return whether products run on 16 bits."""
    return str(row["job"]["precision"]) == "bf16"


def num_micro_batches(row: Row) -> int:
    """Return the micro-batches that each rank takes in a step.

    >>> num_micro_batches({"job": {"global_batch": 64}, "layout": {"mbs": 2, "dp": 4}})
    8
    """
    return int(row["job"]["global_batch"] // (row["layout"]["mbs"] * row["layout"]["dp"]))


def need_plain_layers(row: Row) -> None:
    """Raise for attention and layers that only some planners know."""
    need(row["model"]["latent_attention"] is None, "latent attention")
    need(not row["model"]["mtp_layers"], "layers for multi-token prediction")


def answer(row: Row, predict: Callable[[Row], Prediction]) -> Prediction:
    """Return the prediction of a row, or the reason why there is none."""

    def end(*_: object) -> None:
        raise CannotExpressError(f"no answer within {LIMIT_S:g} s")

    signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        return predict(row)
    except CannotExpressError as error:
        reason = str(error)
    except Exception as error:
        # Planners assert what they cannot express; figures differ from row to row.
        said = str(error) or traceback.extract_tb(error.__traceback__)[-1].line or type(error).__name__
        reason = "it fails: " + re.sub(r"\d+", "#", said.splitlines()[0])[:90]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return {"step_s": reason, "peak_memory_bytes": reason}


def commit_of(tree: str) -> str:
    """Return the commit and date of a tree, empty where it is none of git's."""
    command = ["git", "-C", tree, "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def serve(version: str, assumed: Sequence[str], predict: Callable[[Row], Prediction]) -> None:
    """Answer the rows on standard input; what a planner prints is dropped."""
    rows = json.load(sys.stdin)["rows"]
    cpu_s, predictions = 0.0, []
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        for row in rows:
            start = time.process_time()
            predictions.append(answer(row, predict))
            if any(isinstance(value, float) for value in predictions[-1].values()):
                cpu_s += time.process_time() - start
    json.dump({"version": version, "assumed": assumed, "cpu_s": cpu_s, "predictions": predictions}, sys.stdout)
