"""The import path of the MIMO runtime, whose modules are those of the package zenith-mimo."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from zenith_tune.errors import MissingPackageError

_MOVED = {f"{__name__}.config": "zenith_mimo.planning.config", f"{__name__}.work": "zenith_mimo.planning.work"}


class _Alias(MetaPathFinder, Loader):
    """A finder that has each module under both names as one object."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            module = importlib.import_module(_MOVED.get(spec.name, spec.name.replace(__name__, "zenith_mimo", 1)))
        except ModuleNotFoundError as error:
            if error.name == "zenith_mimo":
                raise ModuleNotFoundError(str(MissingPackageError(__name__, "mimo")), name=error.name) from None
            raise
        spec.loader_state = module.__spec__  # the import replaces it by the alias's
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Alias())
