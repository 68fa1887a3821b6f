from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import toy_plugin
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.registry import PluginWarning, Registry, raising_plug
from zenith_tune.strategies.base import StrategyRegistry


class Thing:
    pass


class OtherThing:
    pass


@pytest.fixture
def registry() -> Registry[object]:
    return Registry("thing", "zenith_tune.presets", {"path": "pathlib"})


def test_a_registered_class_is_found_by_its_name(registry: Registry[object]) -> None:
    assert registry.register("thing")(Thing) is Thing
    assert registry.get("thing") is Thing
    assert registry.name_of(Thing) == "thing"


def test_a_name_is_not_given_twice(registry: Registry[object]) -> None:
    registry.register("thing")(Thing)
    with pytest.raises(UsageError, match=r"'thing' .*tests\.test_registry"):
        registry.register("thing")(OtherThing)


def test_an_unknown_name_lists_the_known_and_guesses() -> None:
    with pytest.raises(UnknownNameError, match=r"strategy 'gird'.*'grid'.*random"):
        StrategyRegistry.get("gird")


def test_built_ins_are_all_loadable() -> None:
    for registry, names in (
        (PresetRegistry, {"demo", "megatron"}),
        (StrategyRegistry, {"grid", "random", "optuna", "megatron-heuristic"}),
    ):
        assert names <= {name for name, _ in registry.each_loadable()}


def test_entry_points_are_loaded_and_a_broken_one_is_named_and_skipped(
    registry: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_plugin.install(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert {"toy", "broken"} <= set(registry.names())
    assert registry.get("toy").__name__ == "Toy"
    with (
        pytest.warns(PluginWarning, match=r"'broken' .*'toy-plugin'.*a_module_that_nobody_has"),
        pytest.raises(UnknownNameError),
    ):
        registry.get("broken")


MINE = """
from zenith_tune.presets.base import TuningPreset
class NotOne: ...
class Mine(TuningPreset):
    def get_search_space(self): return {}
    def apply_parameters(self, command, params): raise RuntimeError("a fault of mine")
    def evaluator(self): ...
    def get_recommended_strategy(self): ...
    def get_default_evaluator(self): ...
"""


def test_a_class_that_is_none_of_the_kind_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    for registry, name in ((PresetRegistry, ":NotOne"), (PresetRegistry, ""), (StrategyRegistry, ":Mine")):
        with pytest.raises(UsageError) as refused:
            registry.get(f"{path}{name}")
        assert (f"{path}:Mine" in refused.value.hint) == (registry is PresetRegistry)
    assert PresetRegistry.get(f"{path}:Mine").__name__ == "Mine"


def test_a_file_that_exits_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leaves.py"
    path.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UsageError, match="SystemExit"):
        PresetRegistry.get(f"{path}:Mine")


def test_an_exception_of_the_users_own_class_names_it_and_its_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    with pytest.raises(RuntimeError) as raised:
        PresetRegistry.get(f"{path}:Mine")().apply_parameters("train", {})
    assert raising_plug(raised.value) == "Mine.apply_parameters of mine.py"
    assert raising_plug(ValueError("of nobody")) is None
