"""Databases that are made as always, but faster."""

from __future__ import annotations

import functools

import alembic.script.base


def keep_revisions() -> None:
    """Have alembic run each of Optuna's thirty revision files once in this process, not once for every database."""
    shared = alembic.script.base.util
    shared.load_python_file = functools.cache(shared.load_python_file)
