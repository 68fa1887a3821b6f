"""What needs the package, where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

import zenith_tune
from tests.mentions import mentions
from tests.plan_runs import planning
from zenith_tune.cli.plan import PlanCommand, plan
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry, recognised_preset
from zenith_tune.strategies.base import StrategyRegistry


@pytest.fixture
def without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenith_tune.registry._installed", lambda *_: metadata.EntryPoints())
    for registry in (PresetRegistry, StrategyRegistry):
        monkeypatch.setattr(registry, "_classes", {})
    for name in [name for name in sys.modules if name.partition(".")[0] == "zenith_rl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "zenith_rl").is_dir()])
    monkeypatch.setattr(plan, "params", [each for each in plan.params if getattr(each, "group", "") != GROUP])
    monkeypatch.setattr(PlanCommand, "kinds", ())


GROUP = "Reinforcement learning"


@pytest.mark.usefixtures("without_it")
@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda: PresetRegistry.get("verl"), "preset verl"),
        (lambda: StrategyRegistry.get("phases"), "strategy phases"),
        (lambda: recognised_preset("python3 -m verl.trainer.main_ppo data.train_batch_size=64"), "preset verl"),
        (lambda: zenith_tune.plan_rl, "zenith_tune.plan_rl"),
    ],
)
def test_it_is_said_in_one_line_what_to_install(ask: Callable[[], object], what: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask()
    assert mentions(refused.value, what, "zenith-rl", "'zenith-tune[rl]'") and "\n" not in str(refused.value)


@pytest.mark.usefixtures("without_it")
@pytest.mark.parametrize("options", [("--rl", "grpo"), ("--model", "gpt2", "--rl=ppo", "--prompts", "8")])
def test_a_plan_with_its_options_says_so_too(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    found = planning(capsys)(*options)
    assert found.code == 2 and len(found.err.splitlines()) == 1
    assert "zenithtune plan --rl is in the package zenith-rl" in found.err and "'zenith-tune[rl]'" in found.err


@pytest.mark.usefixtures("without_it")
def test_a_plan_without_them_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert planning(capsys)("--model", "gpt2", "--cluster", "h100x8", "--gbs", "64", "--seq", "1024").code == 0
