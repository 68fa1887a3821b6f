"""Keeps Optuna's chatter off the terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_optuna(level: int = logging.WARNING) -> Iterator[None]:
    """Let through only what is at least as grave as `level`, and leave the user's settings as they were."""
    logger = logging.getLogger("optuna")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
