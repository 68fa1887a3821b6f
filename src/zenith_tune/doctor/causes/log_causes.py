"""Every cause that a log shows, what ended the run first."""

from __future__ import annotations

import re

from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.causes.collective_timeout import collective_timeout
from zenith_tune.doctor.causes.failed_run import failed_run
from zenith_tune.doctor.causes.not_finite import not_finite
from zenith_tune.doctor.causes.step_lines import after_steps
from zenith_tune.doctor.causes.waiting_ranks import data_stall, straggler

_NAN = re.compile(r"\b(?:nan|inf|non-finite|not finite)\b", re.IGNORECASE)


def log_causes(log: str) -> tuple[Cause, ...]:
    """Return what a log shows to be wrong: what ended the run, then what slows it down.

    >>> [cause.kind.value for cause in log_causes("torch.OutOfMemoryError: CUDA out of memory.")]
    ['out_of_memory']
    """
    log = log.replace("\r", "\n")
    failure, timeout, nan = failed_run(log), collective_timeout(after_steps(log)), not_finite(log)
    # A check that finds NaN raises, and a rank that waits in vain loses its connection: one cause, and not two.
    if failure is not None and (
        (nan is not None and failure.kind is CauseKind.CRASH and _NAN.search(failure.finding))
        or (timeout is not None and failure.kind is CauseKind.COMMUNICATION)
    ):
        failure = None
    found = (failure, nan, timeout, straggler(log), data_stall(log))
    return tuple(cause for cause in found if cause is not None)
