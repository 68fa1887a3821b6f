"""Programs of one's own: axes on the command line, and plugs from a file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import OptimizerStepEvaluator
from zenith_tune.hooks.optimizer import StepWatch
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.shared.training_files import read_yaml
from zenith_tune.presets.space import SpacePreset, parse_axis
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.optuna import OptunaStrategy
from zenith_tune.study.parameters import CategoricalParameter, Direction, FloatParameter, IntParameter, Parameter

Tune = Callable[..., subprocess.CompletedProcess[str]]
TRAINER = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float, default=1e-4)
options = parser.parse_args()
for step in range(4):
    print(json.dumps({"step": step, "speed": {"tokens_per_s": 100.0 * options.batch_size}}))
"""
PLUGS = """
from zenith_tune import CategoricalParameter, Direction, TuningEvaluator, TuningPreset, TuningStrategy

class First(TuningStrategy):
    ends_by_itself = True
    def optimize(self, eval_fn, search_space, direction):
        eval_fn({name: parameter.grid(1)[-1] for name, parameter in search_space.items()})

class Mine(TuningPreset):
    def get_search_space(self):
        return {"b": CategoricalParameter([1, 2])}
    def apply_parameters(self, command, params):
        return f"{command} --batch-size {params['b']}"
    def get_recommended_strategy(self):
        return First()

class Lines(TuningEvaluator):
    direction = Direction.MAXIMIZE
    def evaluate(self, stdout, metadata):
        return stdout.count("tokens")
"""


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("bs=4,8,16", CategoricalParameter((4, 8, 16))),
        ("kind = adam, sgd", CategoricalParameter(("adam", "sgd"))),
        ("rate=0.1,1", CategoricalParameter((0.1, 1))),
        ("depth=1..8", IntParameter(1, 8)),
        ("rate=0.1..1", FloatParameter(0.1, 1.0)),
        ("lr=log:1e-5..1e-3", FloatParameter(1e-5, 1e-3, log=True)),
    ],
)
def test_an_axis_is_a_list_or_a_range(text: str, parameter: Parameter) -> None:
    assert parse_axis(text)[1] == parameter


@pytest.mark.parametrize(
    "text", ["bs", "bs=", "=1", "bs=1..x", "lr=log:0..1", "bs=1,1", "bs=2..1", "x=nan", "b s=1", "x=1,,2"]
)
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_axis(text)


def test_a_value_fills_its_placeholder_or_sets_its_option() -> None:
    preset = SpacePreset(space="batch-size=4,8;lr=0.1,0.2")
    command = preset.apply_parameters("python t.py --batch-size 1 --rate {lr}", {"batch_size": 8, "lr": 0.2})
    assert command == "python t.py --batch-size 8 --rate 0.2"
    assert preset.own_point("python t.py --batch-size 4 --lr 0.1") == {"batch_size": 4, "lr": 0.1}
    assert preset.own_point("python t.py --batch-size 5 --lr 0.1") is None
    with pytest.raises(UsageError):
        SpacePreset(space="a-b=1;a_b=2")


def test_a_program_of_ones_own_is_tuned_without_a_preset(zenithtune: Tune, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TRAINER)
    options = ("--space", "batch-size=2,8", "--space", "lr=1e-4,1e-3", "--objective", "json:speed.tokens_per_s")
    done = zenithtune("optimize", *options, "--study-name", "s", "--no-confirm", "--", sys.executable, "t.py")
    assert done.returncode == 0, done.stderr
    study = json.loads((tmp_path / "zenithtune-out" / "s" / "study.json").read_text())
    assert len(study["trials"]) == 5 and study["best"]["parameters"]["batch_size"] == 8
    assert study["best"]["value"] == 800.0, "rates are maximized"
    refused = zenithtune("optimize", "--preset", "demo", *options, "--", sys.executable, "t.py")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1


def test_preset_strategy_and_evaluator_come_from_a_file(zenithtune: Tune, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TRAINER)
    (tmp_path / "mine.py").write_text(PLUGS)
    plugs = ("--preset", "./mine.py:Mine", "--strategy", "./mine.py:First", "--evaluator", "./mine.py:Lines")
    done = zenithtune("optimize", *plugs, "--study-name", "s", "--no-confirm", "--", sys.executable, "t.py")
    assert done.returncode == 0, done.stderr
    study = json.loads((tmp_path / "zenithtune-out" / "s" / "study.json").read_text())
    assert [trial["value"] for trial in study["trials"]] == [4.0, 4.0], "a whole number will do"
    report = zenithtune("report", "s", "--output-dir", "zenithtune-out")
    assert report.returncode == 0, report.stderr


@pytest.mark.parametrize(("text", "name"), [(None, "X"), ("x = 1", "X"), ("X = 1", "X"), ("1 / 0", "X")])
def test_a_file_that_does_not_serve_is_named(tmp_path: Path, text: str | None, name: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as refused:
        PresetRegistry.get(f"{path}:{name}")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("space", "kind"), [("n=1..8;bs=4,8", GridStrategy), ("n=1..100", OptunaStrategy), ("lr=0.1..0.2", OptunaStrategy)]
)
def test_few_points_are_all_tried(space: str, kind: type) -> None:
    assert type(SpacePreset(space=space).get_recommended_strategy()) is kind


OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks: hook(self, (), {})
"""
PLAIN = """
import sys, time, torch
from torch.optim.optimizer import Optimizer
size = int(sys.argv[sys.argv.index("--bs") + 1])
mine, other = Optimizer(), Optimizer()
for _ in range(12):
    time.sleep(0.2 / size)
    mine.step()
    other.step()
"""


def test_steps_of_a_program_that_no_framework_describes_are_measured(zenithtune: Tune, tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    (tmp_path / "torch" / "optim" / "__init__.py").write_text("")
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "train.py").write_text(PLAIN)
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-confirm", "--no-early-stop")
    command = (sys.executable, str(tmp_path / "train.py"), "--bs", "1")
    done = zenithtune("optimize", *options, "--space", "bs=1,20", "--", *command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert study["best"]["parameters"] == {"bs": 20} and study["best"]["unit"] == "samples/s"
    assert study["trials"][0]["value"] <= 5 < study["best"]["value"] < 2000, "the steps of one optimizer count"
    assert study["best_command"].endswith("--bs 20") and "PYTHONPATH" not in study["best_command"]


@pytest.mark.parametrize(
    ("space", "command", "samples"),
    [
        ("batch-size=4,64", "python t.py --batch-size 64", {"": 64, "batch_size=4": 4}),
        ("mbs=1,2;grad-accum=4,2", "python t.py --mbs 1 --grad-accum 8", {"": 8, "mbs=2,grad_accum=4": 8}),
        ("bs=1,2;eval-batch-size=1,2", "python t.py --bs {bs}", {"bs=2,eval_batch_size=1": 2}),
    ],
)
def test_trials_of_other_batches_are_compared_by_samples(space: str, command: str, samples: dict[str, int]) -> None:
    preset = SpacePreset(space=space)
    preset.bind(command)
    evaluator = preset.evaluator()
    assert isinstance(evaluator, OptimizerStepEvaluator) and evaluator.direction is Direction.MAXIMIZE
    for text, wanted in samples.items():
        params = {name: int(value) for name, _, value in (each.partition("=") for each in text.split(",") if each)}
        log = "".join(f'zenithtune: {{"event": "step", "time": {time}}}\n' for time in range(8))
        assert evaluator._batch(HookedRun.read(log), params) == wanted


def test_a_batch_that_the_command_leaves_to_a_default_is_asked_for() -> None:
    preset = SpacePreset(space="batch-size=4,64")
    preset.bind("python t.py")
    with pytest.raises(UsageError, match="does not give --batch-size"):
        preset.evaluator()


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, count in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        hooks: list[object] = []
        StepWatch().install(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
        assert len(hooks) == count


def test_a_space_without_an_objective_asks_for_one_where_no_python_runs() -> None:
    with pytest.raises(UsageError) as refused:
        SpacePreset(space="n=1..8").evaluator()
    assert "--objective" in refused.value.hint


@pytest.mark.parametrize(
    ("command", "axes", "wanted"),
    [
        ("python t.py model.tp=2 +lr=1 -m x", "model.tp=2,4", "python t.py model.tp=4 +lr=1 -m x"),
        ("python t.py lr=1", "data.workers=2,4", "python t.py lr=1 data.workers=4"),
        ("python t.py --a.b 1", "a.b=2,4", "python t.py --a.b 4"),
        ("python t.py c.yaml", "batch=4,8", "python t.py {trial_folder}/c.yaml"),
        ("python t.py --config=c.yaml", "model.layers=2,4", "python t.py --config={trial_folder}/c.yaml"),
        ("python t.py c.yaml --batch 4", "batch=4,8", "python t.py c.yaml --batch 8"),
        ("python t.py c.yaml", "other=4,8", "python t.py c.yaml --other 8"),
        ("bash -c 'python t.py c.yaml'", "batch=4,8", "bash -c 'python t.py {trial_folder}/c.yaml'"),
    ],
)
def test_values_go_where_the_program_has_them(
    command: str, axes: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(CONFIG)
    preset = SpacePreset(space=axes)
    preset.bind(command)
    point = {name: axis.grid(9)[-1] for name, axis in preset.get_search_space().items()}
    assert preset.apply_parameters(command, point) == wanted


def test_a_command_of_which_no_program_trains_is_filled_in() -> None:
    preset = SpacePreset(space="x=1,2")
    assert preset.apply_parameters("sh -c 'echo {x} >> runs; echo value: 1'", {"x": 2}) == (
        "sh -c 'echo 2 >> runs; echo value: 1'"
    )


CONFIG = "batch: 4  # samples\nmodel: {layers: 2}\n"


def test_a_study_of_a_file_leaves_the_file_alone(zenithtune: Tune, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"model": {"layers": 2, "name": "x"}, "lr": 0.1}')
    (tmp_path / "t.py").write_text("import json, sys; print('speed', json.load(open(sys.argv[1]))['model']['layers'])")
    given = ("--space", "model.layers=1,2,3", "--objective", r"speed (\d+)", "--maximize", "--no-confirm")
    place = ("--output-dir", str(tmp_path / "out"), "--study-name", "s")
    command = (sys.executable, str(tmp_path / "t.py"), str(tmp_path / "c.json"))
    done = zenithtune("optimize", *place, *given, "--", *command)
    assert done.returncode == 0, done.stderr
    best = tmp_path / "out" / "s" / "best_command.sh"
    assert json.loads((tmp_path / "out" / "s" / "c.json").read_text())["model"] == {"layers": 3, "name": "x"}
    assert subprocess.run(["bash", best], capture_output=True, text=True, check=True).stdout == "speed 3\n"
    assert json.loads((tmp_path / "c.json").read_text())["model"]["layers"] == 2
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert len(study["trials"]) == 3, "the user's own values are one of the points"


@pytest.mark.parametrize("space", [{}, [], None, 3])
def test_a_space_that_is_no_text_is_refused(space: Any) -> None:
    with pytest.raises(UsageError, match="space must be a text"):
        SpacePreset(space=space)


@pytest.mark.parametrize("text", ["[" * 20_000 + "]" * 20_000, "- " * 20_000 + "1", "{a: " * 5_000 + "1" + "}" * 5_000])
def test_a_file_that_is_nested_too_deeply_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="nested deeper than 200"):
        read_yaml(text)
    assert time.process_time() - began < 1
