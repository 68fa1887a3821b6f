"""torchtitan itself: its parser takes every command that is written for it, and it trains on CPU where it can.

Releases with a TOML (to 0.2) train here by a stand-in for the device. The models of 0.3 have an attention without a
backward pass on CPU, so that of those the parser alone is asked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module, skip
from tests.thoroughness import few_quick
from tests.warm_process import warm_python
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.stages import layers_before_unit_chunk
from zenith_tune.presets.torchtitan.command import titan_run
from zenith_tune.presets.torchtitan.preset import TorchTitanPreset
from zenith_tune.study.parameters import Params

sys.path.insert(0, str(ROOT / "benchmarks"))

from h200_torchtitan import write_data

Tune = Callable[..., subprocess.CompletedProcess[str]]
ON_CPU = Path(__file__).parent / "torchtitan_on_cpu"
TOML = """
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{folder}/tokenizer"
[training]
dataset = "c4_test"
dataset_path = "{folder}/data"
local_batch_size = 2
global_batch_size = 4
seq_len = 64
steps = 1000
mixed_precision_param = "float32"
[parallelism]
tensor_parallel_degree = 2
"""
PARSER = """
import json, sys
try:
    from torchtitan.config import ConfigManager
except ImportError:
    from torchtitan.config_manager import ConfigManager
from torchtitan.tools.logging import init_logger

init_logger()
found = []
for words in json.loads(sys.argv[1]):
    config = ConfigManager().parse_args(words)
    training, parallel, recompute = config.training, config.parallelism, config.activation_checkpoint
    tokens = getattr(training, "num_tokens_per_train_step", None)
    found.append({
        "tp": parallel.tensor_parallel_degree,
        "pp": parallel.pipeline_parallel_degree,
        "replicate": parallel.data_parallel_replicate_degree,
        "schedule": parallel.pipeline_parallel_schedule,
        "batch": tokens // training.max_context_length if tokens else training.global_batch_size,
        "steps": training.steps,
        "ac": getattr(recompute, "mode", None) or type(recompute).__qualname__.lower().partition("ac.")[0],
        "saves": getattr(config.checkpoint, "enable", None) or getattr(config.checkpoint, "enable_checkpoint", None),
    })
    if hasattr(config, "model_spec"):
        config.maybe_log()
print("PARSED " + json.dumps(found))
"""


def has_toml() -> bool:
    """Tell whether the release that is installed reads a TOML."""
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None and spec.submodule_search_locations is not None
    return not (Path(spec.submodule_search_locations[0]) / "config" / "configs.py").exists()


@pytest.fixture(scope="module", autouse=True)
def torchtitan() -> None:
    for module in ("torch", "datasets", "tokenizers", "torchtitan"):
        need_module("torchtitan", module)


def with_titan(code: str, given: object) -> subprocess.CompletedProcess[str]:
    """Run code that uses torchtitan itself, with what it is given as JSON."""
    paths = os.pathsep.join([str(ON_CPU), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [warm_python(), "-c", code, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def parsed(*commands: str) -> tuple[list[dict[str, Any]], str]:
    """Return what torchtitan's own parser makes of commands, and the log."""
    words = []
    for command in commands:
        run = titan_run(command)
        assert run is not None
        words.append(list(run.arguments))
    done = with_titan(PARSER, words)
    return json.loads(done.stdout.rpartition("PARSED ")[2]), done.stderr + done.stdout


SPLITS = """
import json, sys
from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part
stages = [generate_llm_fqn_per_model_part(number, layers) for layers, number in json.loads(sys.argv[1])]
print("SPLIT " + json.dumps([[sum(name[:7] == "layers." for name in each) for each in parts] for parts in stages]))
"""


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_its_pipelines_have_the_layers_that_are_planned() -> None:
    if not has_toml():
        pytest.skip("newer releases split by a function of another name")
    cases = [(32, 4), (32, 8), (80, 16), (126, 8), (5, 7)]
    done = with_titan(SPLITS, cases)
    for (layers, stages), dealt in zip(cases, json.loads(done.stdout.rpartition("SPLIT ")[2]), strict=True):
        batch = LayoutBatch.of(pp=[stages] * (stages + 1))
        before = layers_before_unit_chunk(float(layers), batch, np.arange(stages + 1.0))
        assert np.diff(before).tolist() == dealt


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_points", few_quick([4, 20], 1))
def test_its_parser_takes_every_kind_of_point(tmp_path: Path, num_points: int) -> None:
    launch = "torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train"
    if has_toml():
        path = tmp_path / "job.toml"
        path.write_text(TOML.format(folder=tmp_path).replace("global_batch_size = 4", "global_batch_size = 64"))
        command = f"{launch} --job.config_file {path}"
    else:
        command = f"{launch} --module llama3 --config llama3_debugmodel"
    preset = TorchTitanPreset(cluster="h100x16", steps=7, mbs_max=4, allow="fp8")
    preset.bind(command)
    _, log = parsed(preset.trial_command(command))
    preset.read_baseline(log)
    points = list(preset.points())
    chosen: list[Params] = points[:: len(points) // num_points + 1]
    levers = [(point, lever) for point in chosen for lever in preset.levers(command, point)][::3]
    chosen += [{**point, **dict.fromkeys(lever.needs, True), lever.name: lever.value} for point, lever in levers]
    written = [preset.apply_parameters(command, point) for point in chosen]
    found, _ = parsed(*written, *(preset.trial_command(text) for text in written))
    own_batch = preset.layout(points[0]).global_batch
    for point, best, trial in zip(chosen, found, found[len(chosen) :], strict=False):
        for each in (best, trial):
            assert (each["tp"], each["pp"], each["batch"]) == (point["tp"], point["pp"], own_batch)
            assert point["ac"] == each["ac"].replace("nonetype", "none")
            assert point["pp"] == 1 or point["schedule"] == each["schedule"]
            assert (each["replicate"] == 16) is (point["shard"] == "ddp")
        assert trial["steps"] == 7 != best["steps"] and not trial["saves"]


@pytest.mark.slow
def test_a_study_on_two_ranks_plans_from_the_run_and_keeps_the_batch(zenithtune: Tune, tmp_path: Path) -> None:
    if not has_toml():
        skip("torchtitan", "the models of this release of torchtitan do not train on CPU")
    write_data(tmp_path, "<|begin_of_text|>", "<|end_of_text|>", 50)
    (tmp_path / "job.toml").write_text(TOML.format(folder=tmp_path))
    paths = os.pathsep.join([str(ON_CPU), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**ENGINE_ENV, "PYTHONPATH": paths}
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-confirm", "--no-early-stop")
    given = ("--n-trials", "1", "--args", "levers=none,steps=4,search=mbs+ac,cluster=h100x2")
    launch = (warm_python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "torchtitan.train")
    command = (*launch, "--job.config_file", str(tmp_path / "job.toml"))
    done = zenithtune("optimize", *options, *given, "--", *command, env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert study["search"]["strategy"] == "guided"
    base, trial = study["trials"]
    assert [run["outcome"] for run in (base, trial)] == ["ok", "ok"] and trial["unit"] == "tokens/s"
    assert trial["peak_memory_bytes"] == 1 << 29
    point = trial["parameters"]
    own = {"mbs": 2, "ac": "selective"}
    assert any(point[name] != value for name, value in own.items())
    best = (tmp_path / "out" / "s" / "best_command.sh").read_text()
    assert "--training.steps" not in best and "--metrics.log_freq" not in best


@pytest.mark.slow
def test_a_sweep_trains_many_points_in_one_process_and_its_rows_are_measured_runs(tmp_path: Path) -> None:
    need_module("torchtitan", "transformers")
    if not has_toml():
        skip("torchtitan", "the models of this release of torchtitan do not train on CPU")
    paths = os.pathsep.join([str(ON_CPU), os.environ.get("PYTHONPATH", "")])
    rows = tmp_path / "rows.csv"
    program = str(ROOT / "benchmarks" / "h200_torchtitan.py")
    words = ["--sweep", "--tiny", "--output", str(rows)]
    env = {**ENGINE_ENV, "PYTHONPATH": paths}
    done = subprocess.run(
        [warm_python(), program, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = [(run.num_gpus, run.layout["tp"], run.probed_stage) for run in read_measured(rows) if run.step_s]
    assert sorted(found, key=str) == [(1, 1, None), (1, 1, None), (8, 1, 0), (8, 2, 0)]
