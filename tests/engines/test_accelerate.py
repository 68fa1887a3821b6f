"""Accelerate itself, on two CPU ranks: our files train under its launcher, and a job that is another one has failed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.engines.conftest import ENGINE_ENV
from tests.mentions import mentions
from tests.requirements import need_module
from tests.warm_process import warm_python

pytestmark = pytest.mark.usefixtures("accelerate")

Tune = Callable[..., subprocess.CompletedProcess[str]]
ON_CPU = {"ACCELERATE_USE_CPU": "true"}
"""With it the ranks that the launcher starts for GPUs make one world on CPUs."""
TOP = "mixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\nmain_process_port: 0\n"
FSDP = "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
DEEPSPEED = "deepspeed_config:\n  zero_stage: 1\n  gradient_accumulation_steps: 2\n"


@pytest.fixture(scope="module")
def accelerate() -> None:
    for module in ("torch", "accelerate"):
        need_module("engines", module)


@pytest.fixture
def deepspeed_env(tmp_path: Path) -> dict[str, str]:
    """Return what DeepSpeed needs on CPUs; Accelerate's backend for it does not train without transformers."""
    for module in ("deepspeed", "transformers"):
        need_module("engines", module)
    return {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}


def optimize(
    zenithtune: Tune, folder: Path, config: str, *options: str, env: dict[str, str], steps: int = 6
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    path = folder / "own.yaml"
    path.write_text(TOP + config)
    launcher = [warm_python(), "-m", "accelerate.commands.launch", "--config_file", str(path)]
    script = [str(ROOT / "examples" / "accelerate_train.py"), "--steps", str(steps), "--batch_size", "2"]
    fixed = ("--output-dir", str(folder / "out"), "--study-name", "s", "--no-early-stop", "--no-baseline")
    done = zenithtune(
        "optimize", "-v", *fixed, *options, "--", *launcher, *script, env={**ENGINE_ENV, **env}, timeout=500
    )
    study = json.loads((folder / "out" / "s" / "study.json").read_text())
    return done, study["trials"]


@pytest.mark.slow
def test_plain_data_parallelism_trains_with_our_files_and_goes_on_by_hand(zenithtune: Tune, tmp_path: Path) -> None:
    options = ("--args", "gbs=8", "--n-trials", "1")
    done, [trial] = optimize(zenithtune, tmp_path, "distributed_type: MULTI_GPU\n", *options, env=ON_CPU)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (trial["parameters"], trial["outcome"], trial["unit"]) == ({"mbs": 2}, "ok", "samples/s")
    assert trial["num_samples"] >= 2
    again = subprocess.run(
        ["bash", tmp_path / "out" / "s" / "best_command.sh"],
        env={**os.environ, **ENGINE_ENV, **ON_CPU},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert again.returncode == 0, again.stderr[-2000:]
    assert "MULTI_CPU: DistributedDataParallel on 2 processes, 2 micro-batches of 2" in again.stdout
    assert "step 6 loss" in again.stdout
    assert "zenithtune: " not in again.stderr, "the hook is for trials"


@pytest.mark.slow
def test_deepspeed_trains_at_the_stage_and_accumulation_of_our_files(
    zenithtune: Tune, tmp_path: Path, deepspeed_env: dict[str, str]
) -> None:
    options = ("--args", "search=stage", "--strategy", "grid", "--n-trials", "1")
    config = f"distributed_type: DEEPSPEED\n{DEEPSPEED}"
    done, [trial] = optimize(zenithtune, tmp_path, config, *options, env=deepspeed_env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (trial["parameters"]["stage"], trial["outcome"]) == (1, "ok")
    [log] = [path.read_text() for path in (tmp_path / "out" / "s" / "trials").glob("*/log.txt")]
    assert "DEEPSPEED: DeepSpeedEngine on 2 processes, 2 micro-batches of 2" in log
    assert '"passes": 2' in log, "each step is of two backward passes"


@pytest.mark.slow
def test_a_lever_of_deepspeed_arrives_through_accelerate(
    zenithtune: Tune, tmp_path: Path, deepspeed_env: dict[str, str]
) -> None:
    options = ("--args", "search=mbs,mbs_max=2,levers=overlap_comm", "--strategy", "grid", "--no-confirm")
    config = f"distributed_type: DEEPSPEED\n{DEEPSPEED}"
    done, trials = optimize(zenithtune, tmp_path, config, *options, env=deepspeed_env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [trial] = [trial for trial in trials if "overlap_comm" in trial["parameters"]]
    # Which of two micro-batches wins is chance, and at the smaller one the example's data may end within a step.
    assert trial["outcome"] == "ok" or trial["parameters"]["mbs"] == 1, trial["cause"]
    log = (tmp_path / "out" / "s" / "trials" / f"{trial['number']:04}" / "log.txt").read_text()
    assert '"zero_optimization.overlap_comm": true' in log and '"zero_stage": 1' in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "env", "named"),
    [
        (
            "distributed_type: MULTI_CPU\nuse_cpu: true\n",
            {},
            ("one process", "2 processes"),
        ),
        (f"distributed_type: FSDP\n{FSDP}", {}, ("2 unrelated",)),
        (
            f"distributed_type: FSDP\n{FSDP}",
            ON_CPU,
            ("(DistributedDataParallel)", "FSDP"),
        ),
    ],
    ids=["one process", "unrelated processes", "another backend"],
)
def test_a_job_that_silently_ran_as_another_has_failed(
    zenithtune: Tune, tmp_path: Path, config: str, env: dict[str, str], named: tuple[str, ...]
) -> None:
    done, [trial] = optimize(zenithtune, tmp_path, config, "--n-trials", "1", env=env, steps=4)
    assert done.returncode == 1
    assert (trial["outcome"], trial["value"]) == ("error", None)
    assert mentions(trial["cause"], *named)
    [code] = [path.read_text().strip() for path in (tmp_path / "out" / "s" / "trials").glob("*/exit_code")]
    assert code == "0", "it said nothing itself"


@pytest.mark.slow
def test_a_model_that_is_left_unwrapped_has_failed(zenithtune: Tune, tmp_path: Path) -> None:
    own = tmp_path / "train.py"
    script = (ROOT / "examples" / "accelerate_train.py").read_text()
    assert "handlers = []\n" in script
    # One world without a backend: what Accelerate makes of ranks that it takes for a single machine's.
    own.write_text(script.replace("handlers = []\n", 'handlers = [InitProcessGroupKwargs(backend="gloo")]\n'))
    path = tmp_path / "own.yaml"
    path.write_text(f"{TOP}distributed_type: FSDP\n{FSDP}")
    command = [warm_python(), "-m", "accelerate.commands.launch", "--config_file", str(path), str(own), "--steps", "4"]
    done = zenithtune(
        "optimize", "-v", "--output-dir", str(tmp_path / "out"), "--", *command, env=ENGINE_ENV, timeout=500
    )
    assert done.returncode == 2
    assert mentions(done.stderr, "unwrapped", "(Sequential)")


EPOCHS = """
import argparse
import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--accum", type=int, default=2)
options = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=options.accum)
model = torch.nn.Linear(8, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 8)), batch_size=options.bs)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for _ in range(4):
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(batch) - batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_short_last_accumulation_of_an_epoch_is_no_fault(zenithtune: Tune, tmp_path: Path, python: str) -> None:
    own, path = tmp_path / "epochs.py", tmp_path / "own.yaml"
    own.write_text(EPOCHS)
    path.write_text(f"{TOP}distributed_type: MULTI_GPU\n")
    command = [python, "-m", "accelerate.commands.launch", "--config_file", str(path), str(own), "--bs", "4"]
    fixed = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-early-stop", "--no-baseline")
    named = ("--args", "mbs_option=--bs,gas_option=--accum,gbs=16,mbs_max=4", "--n-trials", "1", "--strategy", "grid")
    env = {**ENGINE_ENV, **ON_CPU}
    done = zenithtune("optimize", "-v", *fixed, *named, "--", *command, "--accum", "2", env=env, timeout=500)
    [trial] = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["trials"]
    [log] = [path.read_text() for path in (tmp_path / "out" / "s" / "trials").glob("*/log.txt")]
    assert (trial["outcome"], trial["cause"]) == ("ok", None), done.stderr[-2000:]
    assert '"passes": 1, "is_end": true' in log, "five batches a rank, two to a step"


IN_PYTHON = """
import argparse
import torch
from accelerate import Accelerator
{imports}
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
options = parser.parse_args()
accelerator = Accelerator({arguments})
model = torch.nn.Linear(8, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(512, 8)), batch_size=options.batch_size)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for _ in range(2):
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(batch) - batch).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def tune_script(
    zenithtune: Tune, folder: Path, script: str, *options: str, env: dict[str, str], more: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], list[str]]:
    """Tune a script of one's own by a file of plain data parallelism; returns the study and the trials' logs."""
    own, path = folder / "train.py", folder / "own.yaml"
    own.write_text(script)
    path.write_text(f"{TOP}distributed_type: MULTI_GPU\n")
    command = [warm_python(), "-m", "accelerate.commands.launch", "--config_file", str(path), str(own), *more]
    fixed = ("--output-dir", str(folder / "out"), "--study-name", "s", "--no-early-stop", "--no-confirm")
    done = zenithtune("optimize", "-v", *fixed, *options, "--", *command, env={**ENGINE_ENV, **env}, timeout=500)
    study = folder / "out" / "s"
    found = json.loads((study / "study.json").read_text()) if (study / "study.json").exists() else {}
    return done, found, [path.read_text() for path in sorted((study / "trials").glob("*/log.txt"))]


@pytest.mark.slow
def test_an_accumulation_that_the_script_sets_is_kept(zenithtune: Tune, tmp_path: Path) -> None:
    script = IN_PYTHON.format(imports="", arguments="gradient_accumulation_steps=8")
    options = ("--args", "mbs_max=4", "--strategy", "grid")
    done, study, logs = tune_script(zenithtune, tmp_path, script, *options, env=ON_CPU, more=("--batch_size", "2"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    own, *trials = study["trials"]
    outcomes = {trial["parameters"]["mbs"]: trial["outcome"] for trial in trials}
    assert outcomes == {1: "ok", 4: "ok"}, "your own command is mbs 2"
    assert [log.count('"samples": 32,') > 3 for log in logs] == [True] * 3, "2 ranks, 2 samples, 8 passes"
    assert '"passes": 4, "is_end": false' in logs[-1]
    assert own["value"] == pytest.approx(32 / own["step_s"], rel=0.2)


@pytest.mark.slow
def test_an_accumulation_that_nothing_can_change_from_outside_is_named(zenithtune: Tune, tmp_path: Path) -> None:
    imports = "from accelerate.utils import GradientAccumulationPlugin\n"
    plugin = "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4)"
    script = IN_PYTHON.format(imports=imports, arguments=plugin)
    options = ("--args", "mbs_max=4", "--strategy", "grid")
    done, study, logs = tune_script(zenithtune, tmp_path, script, *options, env=ON_CPU, more=("--batch_size", "2"))
    assert len(logs) == len(study["trials"]) == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "gradient_accumulation_plugin" in done.stdout


@pytest.mark.slow
def test_a_deepspeed_plugin_of_the_script_is_recognised_and_tuned(
    zenithtune: Tune, tmp_path: Path, deepspeed_env: dict[str, str]
) -> None:
    imports = (
        "import deepspeed\nfrom accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs\n"
        "deepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False\n"
    )
    arguments = (
        "gradient_accumulation_steps=2, kwargs_handlers=[InitProcessGroupKwargs(backend='gloo')], "
        "deepspeed_plugin=DeepSpeedPlugin(offload_optimizer_device='none')"
    )
    script = IN_PYTHON.format(imports=imports, arguments=arguments)
    options = ("--n-trials", "1", "--strategy", "grid")
    done, study, logs = tune_script(zenithtune, tmp_path, script, *options, env=deepspeed_env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    _, trial = study["trials"]
    assert trial["outcome"] == "ok" and trial["parameters"]["stage"] != 2, "your own command is stage 2"
    assert trial["parameters"]["offload_optimizer"] == "none" and "offload_optimizer_device" in done.stdout
    assert f'"zero_stage": {trial["parameters"]["stage"]}' in logs[-1]
