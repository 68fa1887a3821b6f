"""Loads what a `zenithtune` command loads, for a process whose forks then begin with it."""

from __future__ import annotations

import importlib
import pkgutil

import zenith_tune
from tests.quick_databases import make_databases_quick

OF_OTHER_PROCESSES = ("zenith_tune.mimo", "zenith_tune.testing")
for name in ("numpy.random", "rich.live", "rich.table", "zenith_mimo.preset.preset", "zenith_mimo.preset.strategy"):
    importlib.import_module(name)
for module in pkgutil.walk_packages(zenith_tune.__path__, "zenith_tune."):
    if not module.name.startswith(OF_OTHER_PROCESSES):
        importlib.import_module(module.name)
make_databases_quick()
