"""`zenith_tune.mimo` is another name of the modules of zenith-mimo."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.requirements import need_module


@pytest.mark.parametrize(
    ("alias", "module"),
    [
        ("grid", "zenith_mimo.grid"),
        ("megatron.support", "zenith_mimo.megatron.support"),
        ("config", "zenith_mimo.planning.config"),
        ("work", "zenith_mimo.planning.work"),
    ],
)
def test_a_module_is_the_same_under_both_paths(alias: str, module: str) -> None:
    need_module("mimo", "torch")
    found = importlib.import_module(f"zenith_tune.mimo.{alias}")
    assert found is importlib.import_module(module)
    assert found.__name__ == module and found.__spec__ is not None and found.__spec__.name == module


def test_without_the_package_an_import_says_in_one_line_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("zenith_tune.mimo")
    for name in [name for name in sys.modules if name.startswith(("zenith_mimo", "zenith_tune.mimo."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "zenith_mimo").is_dir()])
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'zenith-tune\[mimo\]'") as raised:
        importlib.import_module("zenith_tune.mimo.trainer")
    assert "\n" not in str(raised.value)
