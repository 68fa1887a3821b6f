"""Which files a trial's hooks are, and how their lines are read back."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import need_module
from zenith_tune.hooks.injection import hook_events, hook_files, start_line, start_seconds, with_hook, without_code
from zenith_tune.hooks.process import PREFIX

HOOKS = ("accelerate", "lightning", "optimizer", "packages", "probe", "short_steps", "trainer")
ALL = hook_files({name: {} for name in HOOKS}, "model", "longest", "orders")
TRAINS = """
import time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
time.sleep(0.5)
for batch in torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4):
    model(batch).sum().backward()
    time.sleep(0.3)
    optimizer.step()
"""


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


@pytest.mark.slow
def test_a_trial_times_the_stages_of_its_start_and_the_best_command_does_not(tmp_path: Path) -> None:
    need_module("engines", "torch")
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    for folder in ("hook", "best"):
        for name, text in hook_files({"optimizer": {}}, folder=folder).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    logs = {}
    for folder in ("hook", "best"):
        env = {**os.environ, "PYTHONPATH": str(tmp_path / folder)}
        done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        logs[folder] = done.stderr
    found = start_seconds(logs["hook"])
    assert list(found) == ["launch", "imports", "building", "first_step"]
    assert found["building"] >= 0.5 and found["first_step"] >= 0.3 and "building" in start_line(found)
    assert not start_seconds(logs["best"])


def test_one_more_hook_joins_those_of_a_trial() -> None:
    files = with_hook(hook_files({"packages": {}}), "short_steps", {"numbers": [2], "whole": 8})
    assert sorted(json.loads(files["hook/hooks.json"])) == ["packages", "short_steps"]
