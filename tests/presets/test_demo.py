from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.study_tools import Witness
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.demo import DemoPreset
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.testing import PresetContract

FAKE_TRAINER = Path(__file__).parents[2] / "examples" / "fake_megatron_train.py"


class TestDemoPreset(PresetContract):
    def make(self) -> DemoPreset:
        return DemoPreset()


def test_the_demo_is_small_and_searched_by_a_grid() -> None:
    preset = DemoPreset()
    space = preset.get_search_space()
    assert {name: parameter.grid(1) for name, parameter in space.items()} == {
        "tp": [1, 2, 4, 8],
        "mbs": [1, 2, 4],
        "recompute": ["full", "selective"],
    }
    strategy = preset.get_recommended_strategy()
    assert isinstance(strategy, GridStrategy)
    assert strategy.max_trials(space) == 24


def test_a_batch_that_cannot_be_split_is_pruned_with_its_reason() -> None:
    preset = DemoPreset(n_gpus=8, gbs=16)
    reason = preset.explain({"tp": 1, "mbs": 4, "recompute": "full"})
    assert mentions(reason, "gbs", "dp*mbs", 16, 32)
    assert preset.explain({"tp": 2, "mbs": 4, "recompute": "full"}) is None


def test_every_point_that_is_kept_is_one_that_the_trainer_takes() -> None:
    preset = DemoPreset()
    command = shlex.join([sys.executable, str(FAKE_TRAINER), "--iteration-seconds", "0", "--train-iters", "5"])
    values = {}
    for tp in (1, 2, 4, 8):
        point = {"tp": tp, "mbs": 2, "recompute": "full"}
        done = subprocess.run(shlex.split(preset.apply_parameters(command, point)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        values[tp] = preset.evaluator().evaluate(done.stdout, {})
    assert len(set(values.values())) == 4


@pytest.mark.parametrize("name", ["n_gpus", "gbs"])
def test_a_count_below_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"\b{name} .*\b1\b.*\b0\b.*\b{name}=1\b"):
        DemoPreset(**{name: 0})


def test_the_demo_is_registered() -> None:
    assert PresetRegistry.get("demo") is DemoPreset


def test_a_placeholder_is_filled_and_the_rest_is_set() -> None:
    command = DemoPreset().apply_parameters("MBS={mbs} python train.py", {"tp": 2, "mbs": 4, "recompute": "full"})
    assert command.startswith("MBS=4 python train.py --tensor-model-parallel-size 2")
    assert "--micro-batch-size" not in command


def test_a_plain_fake_trainer_has_options_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "fake_train.py"
    script.write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "for name in ('--epochs', '--batch-size', '--num-workers'):\n"
        "    parser.add_argument(name, type=int, default=4)\n"
        "options = parser.parse_args()\n"
        "print(f'Total training time: {100 / options.batch_size + abs(options.num_workers - 6):.2f}s')\n"
    )
    command = f"{sys.executable} {script} --epochs 3"
    tuner = PresetTuner(command, "demo", output_dir=tmp_path / "out", confirm=False, listener=Witness())
    assert tuner.optimize() == (0.78, {"batch_size": 128, "num_workers": 6})
    assert tuner.render({"batch_size": 16, "num_workers": 2}) == f"{command} --batch-size 16 --num-workers 2"
