from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import toy_plugin
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.registry import PluginWarning, Registry, construct, keywords_of, raising_plug
from zenith_tune.runners.base import RunnerRegistry
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


BROKEN = {
    "exits": "import sys\nsys.exit('a message\\nof two lines')\nclass Plug: ...",
    "raises": "raise BaseExceptionGroup('several', [ValueError('one'), KeyError('two')])",
    "is_a_function": "def Plug(): ...",
    "is_a_number": "Plug = 3",
    "is_another_class": "class Plug: ...",
    "has_no_such_name": "",
    "is_no_python": "class",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("registry", [PresetRegistry, StrategyRegistry, EvaluatorRegistry, RunnerRegistry])
def test_a_plugin_that_is_broken_is_named_in_one_line_and_the_others_work(
    registry: Registry[Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"plug_that_{name}"
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.entry_point_group}]\nbroken-plug = {module}:Plug\n")
    (tmp_path / f"{module}.py").write_text(BROKEN[name])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(registry, "_broken", set())
    with pytest.warns(PluginWarning, match=r"'broken-plug' of package 'broken-plugin'") as warned:
        loadable = [found for found, _ in registry.each_loadable()]
    assert len(warned) == 1 and "\n" not in str(warned[0].message)
    assert loadable and "broken-plug" not in [*loadable, *registry.names()]


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


@dataclass(frozen=True, kw_only=True)
class Sizes:
    width: int
    height: int = 1


class Sized:
    @keywords_of(Sizes)
    def __init__(self, given: Sizes) -> None:
        self.given = given


def test_a_constructor_takes_the_fields_of_a_dataclass() -> None:
    assert Sized(width=8).given == Sizes(width=8)
    assert construct(Sized, {"width": "8", "height": "2"}, "sized").given == Sizes(width=8, height=2)
