"""What the hooks in a trial's process share: they act when a module is imported, and write lines into the log.

A copy stands beside each `sitecustomize.py` of a trial, which Python runs before the user's program. It needs nothing
but Python 3.8, and what it cannot watch it leaves alone.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any

PREFIX = "zenithtune-accelerate: "


class WatchImports:
    """Act as soon as a module is loaded, whoever imports it and when."""

    def __init__(self, name: str, action: Any) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find the module as Python would have, and act after it is executed."""
        if name != self.name:
            return None
        self.name = ""
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: Any) -> None:
            load(module)
            with contextlib.suppress(AttributeError):  # a module of another shape is left alone
                self.action(module)

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def watch(name: str, action: Any) -> None:
    """Act on a module once it is loaded, which a .pth file may have done before any sitecustomize runs."""
    if name in sys.modules:
        with contextlib.suppress(AttributeError):
            action(sys.modules[name])
    else:
        sys.meta_path.insert(0, WatchImports(name, action))


def tell(event: dict[str, Any]) -> None:
    """Write one line in one piece, so that those of other ranks do not run into it."""
    os.write(2, f"{PREFIX}{json.dumps(event)}\n".encode())


def run_shadowed(file: str) -> None:
    """Run the sitecustomize that `file` stands in front of, as Python would have."""
    here = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120 - the user's process should not load pathlib
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
