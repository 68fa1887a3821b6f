"""Loads what a `zenithtune` command loads, for a process whose forks then begin with it."""

from __future__ import annotations

import importlib
import pkgutil

import optuna
import rich.live
import rich.table

import zenith_tune.cli
import zenith_tune.tuner
from tests.quick_databases import keep_revisions

for command in pkgutil.iter_modules(zenith_tune.cli.__path__):
    importlib.import_module(f"zenith_tune.cli.{command.name}")
keep_revisions()
optuna.logging.set_verbosity(optuna.logging.ERROR)
optuna.storages.RDBStorage("sqlite://").engine.dispose()
optuna.logging.set_verbosity(optuna.logging.INFO)
