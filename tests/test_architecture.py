"""Holds the house together: imports run one way, heavy parts stay outside, public names are pinned."""

from __future__ import annotations

import ast
from pathlib import Path

import zenith_tune

SOURCE = Path(zenith_tune.__file__).parent

# From the ground up: a module may import from its own layer and from those above it in this list.
LAYERS: list[list[str]] = [
    ["errors", "direction", "units", "parameters", "regular_file", "secret_names", "resources"],
    ["lazy_group", "registry", "command_line", "constructor_args", "distributions", "quiet_optuna"],
    ["placeholders", "secrets"],
    ["trial", "trial_folder", "trial_log", "study", "output_file"],
    ["describe"],
    ["checkpoint"],
    ["layouts"],
    ["mimo"],
    ["estimate"],
    ["measured"],
    ["calibrate"],
    ["planning"],
    ["planner"],
    ["guided"],
    ["zero"],
    ["emit"],
    ["evaluators"],
    ["strategies"],
    ["presets"],
    ["events"],
    ["runners", "record"],
    ["probe", "doctor"],
    ["trial_watch"],
    ["interruption", "timeouts", "study_place", "trial_execution", "evaluation", "study_telling"],
    ["left_trials"],
    ["study_session"],
    ["alone_check", "command_check"],
    ["tuner"],
    ["dry_run"],
    ["report"],
    ["serve", "exports"],
    ["plan_request", "probe_command", "checkpoint_command", "doctor_command", "guide_command"],
    ["report_command", "serve_command", "export_command"],
    ["plan_command"],
    ["calibrate_command"],
    ["testing", "cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# A registry names classes for the type checker only; a tuner without a listener prints to the terminal.
ALLOWED_UPWARD = {("registry", plug) for plug in ("evaluators", "presets", "runners", "strategies")}
ALLOWED_UPWARD |= {("tuner", "report")}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _home(name: str) -> str:
    """Return the part that a name imported from the package itself stands for."""
    return part(getattr(getattr(zenith_tune, name), "__module__", "")) if name in zenith_tune.__all__ else name


def imports() -> list[tuple[str, str]]:
    """Return every import between parts of the package, as (importer, imported)."""
    found = []
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are written out"
                if node.module == "zenith_tune":
                    found += [(here, _home(alias.name)) for alias in node.names]
                elif node.module and node.module.startswith("zenith_tune."):
                    found.append((here, part(node.module)))
            if isinstance(node, ast.Import):
                found += [(here, part(alias.name)) for alias in node.names if alias.name.startswith("zenith_tune.")]
    return [(a, b) for a, b in found if a not in ("__init__",) and a != b and b != "__version__"]


def test_every_part_has_its_layer() -> None:
    parts = {path.relative_to(SOURCE).with_suffix("").parts[0] for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert parts == set(RANK)


def test_imports_run_one_way() -> None:
    upward = {(a, b) for a, b in imports() if RANK[b] > RANK[a]} - ALLOWED_UPWARD
    assert upward == set()


def test_parts_of_one_layer_do_not_import_one_another_in_circles() -> None:
    edges = set(imports()) - ALLOWED_UPWARD
    assert {(a, b) for a, b in edges if (b, a) in edges} == set()


def test_runners_and_the_record_stand_side_by_side() -> None:
    assert not {("runners", "record"), ("record", "runners"), ("evaluators", "record")} & set(imports())


def test_layouts_and_description_know_neither_torch_nor_optuna() -> None:
    for folder in ("layouts", "describe", "estimate"):
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
        "IntParameter",
        "JobSpec",
        "Layout",
        "Outcome",
        "Parameter",
        "Planner",
        "PresetRegistry",
        "PresetTuner",
        "RegexEvaluator",
        "RunnerRegistry",
        "StrategyRegistry",
        "Trial",
        "TrialExhausted",
        "TuningEvaluator",
        "TuningPreset",
        "TuningStrategy",
        "default_calibration",
        "load_cluster",
        "load_framework",
        "load_model",
    ]
    assert all(getattr(zenith_tune, name) is not None for name in zenith_tune.__all__)
