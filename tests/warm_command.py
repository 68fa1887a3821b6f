"""Loads what a `zenithtune` command loads, for a process whose forks then begin with it."""

from __future__ import annotations

import importlib
import pkgutil

import optuna

import zenith_tune.cli
from tests.quick_databases import make_databases_quick

for name in ("rich.live", "rich.table", "zenith_tune.tuner"):
    importlib.import_module(name)
for command in pkgutil.iter_modules(zenith_tune.cli.__path__, "zenith_tune.cli."):
    importlib.import_module(command.name)
make_databases_quick()
optuna.logging.set_verbosity(optuna.logging.ERROR)
optuna.storages.RDBStorage("sqlite://").engine.dispose()
optuna.logging.set_verbosity(optuna.logging.INFO)
