"""Holds the house together: imports run one way, heavy parts stay outside, public names are pinned."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import zenith_tune

SOURCE = Path(zenith_tune.__file__).parent

# From the ground up: a module may import from its own layer and from those above it in this list.
LAYERS: list[list[str]] = [
    ["errors", "units", "registry", "notebook"],
    ["study"],
    ["shell", "hooks"],
    ["describe"],
    ["layouts"],
    ["estimates"],
    ["calibrate"],
    ["planner"],
    ["evaluators", "strategies"],
    ["presets"],
    ["runners", "record"],
    ["doctor"],
    ["tuning"],
    ["report", "notification"],
    ["tuner"],
    ["api"],
    ["serve", "exports", "testing", "cli", "mimo"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MOST_FILES = 15
FRAMEWORKS = {path.parent.name for path in SOURCE.glob("presets/*/command.py")}
FAMILIES = {
    ("axolotl", "trainer"),
    ("llamafactory", "trainer"),
    ("megatron_bridge", "megatron"),
}
"""Frameworks on top of others, as (importer, imported)."""


def modules() -> dict[str, Path]:
    """Return every module of the package by its name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    """Yield the modules that one statement imports from."""
    for alias in node.names:
        home = getattr(getattr(zenith_tune, alias.name, None), "__module__", "") if node.module == "zenith_tune" else ""
        within = f"{node.module}.{alias.name}"
        yield home or (within if within in MODULES else str(node.module))


def statements(path: Path) -> Iterator[ast.AST]:
    """Yield every statement of a file, also those inside others; what is inside expressions is no import."""
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        yield node
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, inner, ())


@functools.cache
def imports() -> set[tuple[str, str]]:
    """Return every import between modules of the package, also those inside functions, as (importer, imported)."""
    found = set()
    for name, path in MODULES.items():
        for node in statements(path):
            if isinstance(node, ast.ImportFrom):
                if node.level and path.parent.name == "hooks":  # there is another package around them in a trial
                    node.module = f"zenith_tune.hooks.{node.module}" if node.module else "zenith_tune.hooks"
                else:
                    assert node.level == 0, f"{path}: imports are written out"
                found |= {(name, other) for other in _imported(node) if other in MODULES}
            elif isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names if alias.name in MODULES}
    return {(a, b) for a, b in found if a != b and "zenith_tune" not in (a, b)}


def part(module: str) -> str:
    return module.split(".")[1]


def folder(module: str) -> str:
    return ".".join(MODULES[module].parent.relative_to(SOURCE.parent).parts)


def test_every_part_has_its_layer() -> None:
    assert {part(name) for name in MODULES if "." in name} == set(RANK)


def test_imports_run_one_way() -> None:
    assert {(a, b) for a, b in imports() if RANK[part(b)] > RANK[part(a)]} == set()


def test_parts_of_one_layer_do_not_import_one_another_in_circles() -> None:
    edges = {(part(a), part(b)) for a, b in imports()}
    assert {(a, b) for a, b in edges if a != b and (b, a) in edges} == set()


def test_no_files_import_one_another_in_circles() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for a, b in imports():
        sorter.add(a, b)
    in_order = [*sorter.static_order()]  # raises CycleError, which names the files
    assert set(in_order) == {name for edge in imports() for name in edge}


def test_no_folders_import_one_another_in_circles() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for a, b in ((folder(a), folder(b)) for a, b in imports()):
        # What lies within a folder is part of it.
        if not f"{a}.".startswith(f"{b}.") and not f"{b}.".startswith(f"{a}."):
            sorter.add(a, b)
    assert "zenith_tune.presets.megatron" in [*sorter.static_order()]  # raises CycleError, which names the folders


def test_no_framework_imports_another_but_its_own_family() -> None:
    """Logs and hooks aside: Trainer and DeepSpeed jobs print what Accelerate's do."""
    between = {
        (a.split(".")[2], b.split(".")[2])
        for a, b in imports()
        if part(a) == part(b) == "presets" and b.rpartition(".")[2] not in ("evaluator", "hook")
    }
    assert len(FRAMEWORKS) > 8
    assert {(a, b) for a, b in between if a != b and a in FRAMEWORKS and b in FRAMEWORKS} <= FAMILIES


def test_recognising_a_command_loads_no_preset() -> None:
    command = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2"
    code = f"from zenith_tune.presets.base import recognised_preset; recognised_preset({command!r})"
    loaded = modules_loaded_by(code)
    assert "zenith_tune.presets.megatron.command" in loaded and len(loaded) <= 28 + 2 * len(FRAMEWORKS)
    assert [name for name in loaded if name.endswith((".preset", ".space", ".job", ".evaluator"))] == []


def test_a_plan_loads_neither_presets_nor_strategies() -> None:
    argv = ["plan", "--model", "llama3-8b", "--cluster", "h100x8", "--gbs", "64", "--seq", "4096"]
    loaded = modules_loaded_by(f"from zenith_tune.cli.main import main; main({argv!r})")
    assert "zenith_tune.planner.planner" in loaded
    assert [name for name in loaded if name.startswith("zenith_tune.strategies")] == []
    presets = {name for name in loaded if name.startswith("zenith_tune.presets.")}
    assert presets == {"zenith_tune.presets.emission", "zenith_tune.presets.formats"}


def modules_loaded_by(code: str) -> list[str]:
    """Return the modules of the package that a fresh interpreter has loaded after running some code."""
    report = "print('\\n'.join(name for name in sys.modules if name.startswith('zenith_tune.')), file=sys.stderr)"
    text = f"import atexit, sys; atexit.register(lambda: {report})\n{code}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stderr.split()


def test_runners_and_the_record_stand_side_by_side() -> None:
    parts = {(part(a), part(b)) for a, b in imports()}
    assert not {("runners", "record"), ("record", "runners"), ("evaluators", "record")} & parts


def test_the_main_package_imports_none_of_its_siblings() -> None:
    siblings = {
        "zenith_calibration",
        "zenith_checkpoint",
        "zenith_kubernetes",
        "zenith_mimo",
        "zenith_rl",
        "layoutbench",
    }
    found = set()
    for name, path in MODULES.items():
        for node in statements(path):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names if alias.name.split(".")[0] in siblings}
            elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in siblings:
                found.add((name, str(node.module)))
    assert found == set()


def test_no_folder_is_crowded() -> None:
    sizes = Counter(path.parent for path in MODULES.values())
    assert {str(folder.relative_to(SOURCE)): size for folder, size in sizes.items() if size > MOST_FILES} == {}


def test_layouts_and_description_know_neither_torch_nor_optuna() -> None:
    for folder in ("layouts", "describe", "estimates"):
        for path in (SOURCE / folder).rglob("*.py"):
            text = path.read_text()
            assert "import torch" not in text and "optuna" not in text, path


def test_public_names_are_these() -> None:
    assert zenith_tune.__all__ == [
        "BoolParameter",
        "CategoricalParameter",
        "ConsecutiveDuplicateLimitExceeded",
        "ConsecutivePruneLimitExceeded",
        "Direction",
        "EvaluatorRegistry",
        "FloatParameter",
        "Gain",
        "IntParameter",
        "JobSpec",
        "Layout",
        "MegatronHeuristicStrategy",
        "MegatronPreset",
        "Outcome",
        "Parameter",
        "Plan",
        "PlannedLayout",
        "Planner",
        "PresetRegistry",
        "PresetTuner",
        "RegexEvaluator",
        "RunDiagnosis",
        "RunnerRegistry",
        "StrategyRegistry",
        "StudyListener",
        "StudyResult",
        "Trial",
        "TrialExhausted",
        "TuneOptions",
        "TuningEvaluator",
        "TuningPreset",
        "TuningStrategy",
        "UsageError",
        "ZenithTuneError",
        "compare_clusters",
        "default_calibration",
        "diagnose",
        "estimate",
        "load_cluster",
        "load_framework",
        "load_model",
        "plan",
        "tune",
    ]
    assert all(getattr(zenith_tune, name) is not None for name in [*zenith_tune.__all__, "plan_rl"])
