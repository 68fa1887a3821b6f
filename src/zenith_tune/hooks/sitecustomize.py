"""Starts the hooks that a trial asks for, before the user's program: Python imports this file by its name.

It stands in a folder at the front of PYTHONPATH, next to the hooks and to a JSON that names them with their settings.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys


def start_hooks(here: str) -> None:
    """Start each hook with its settings; what a trial has beyond them times its start."""
    with contextlib.suppress(ImportError):
        importlib.import_module("zenithtune_hooks.stages").start(here)
    with open(os.path.join(here, "hooks.json"), encoding="utf-8") as file:
        hooks = json.load(file)
    for name, settings in hooks.items():
        importlib.import_module("zenithtune_hooks." + name).start(settings, here)


def run_shadowed(here: str) -> None:
    """Run the sitecustomize that this one stands in front of, as Python would have."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    folder = os.path.dirname(os.path.abspath(__file__))
    start_hooks(folder)
    run_shadowed(folder)
