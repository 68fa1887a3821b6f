"""Which files a trial's hooks are, and how their lines are read back."""

from __future__ import annotations

import ast

import pytest

from zenith_tune.hooks.injection import hook_events, hook_files, without_code
from zenith_tune.hooks.process import PREFIX

HOOKS = ("accelerate", "lightning", "optimizer", "packages", "probe", "short_steps", "trainer")
ALL = hook_files({name: {} for name in HOOKS}, "model", "longest")


@pytest.mark.parametrize("prefix", [PREFIX, "zenithtune-accelerate: "])
def test_lines_of_this_and_of_earlier_releases_are_read(prefix: str) -> None:
    log = f'x\n[rank0]: {prefix}{{"event": "step"}}\n{prefix}{{"torn\n{prefix}[1]\n'
    assert hook_events(log) == [{"event": "step"}]


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith(".py")])
def test_hooks_are_python_of_3_8_and_import_nothing_of_the_tuner(name: str) -> None:
    tree = ast.parse(ALL[name], feature_version=(3, 8))
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    assert not [module for module in named if module.startswith("zenith_tune")]


def test_the_settings_of_hooks_identify_a_trial_and_their_code_does_not() -> None:
    files = {**ALL, "config.yaml": "a: 1\n"}
    assert set(without_code(files)) == {"hook/hooks.json", "config.yaml"}
    assert without_code(hook_files({"trainer": {"set": {"a": 1}}})) != without_code(
        hook_files({"trainer": {"set": {}}})
    )
