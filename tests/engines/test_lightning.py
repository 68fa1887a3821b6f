"""Lightning itself, on CPU: from a command that people type to one that trains the same batch without us."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.hooks.injection import hook_files

SCRIPT = """
import time
import torch
import {package} as L
from {package}.callbacks import EarlyStopping, ModelCheckpoint

clock = [0.0]
time.monotonic = lambda: clock[0]  # a pass takes a second, so that few large ones are faster on any machine

class Pairs(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return torch.full((4,), float(at)), torch.ones(1)

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.sizes = torch.nn.Linear(4, 1), []
    def training_step(self, batch, at):
        self.sizes.append(len(batch[0]))
        clock[0] += 1.0
        self.logger.experiment.add_scalar("one", 1.0, at)
        return (self.model(batch[0]) - batch[1]).square().mean()
    def validation_step(self, batch, at): self.log("loss", self.model(batch[0]).mean())
    def configure_callbacks(self): return [EarlyStopping("loss")]
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 1e-9)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {{"optimizer": optimizer, "lr_scheduler": {{"scheduler": schedule, "monitor": "loss"}}}}
    def train_dataloader(self): return torch.utils.data.DataLoader(Pairs(), 1, shuffle=True)
    def val_dataloader(self): return torch.utils.data.DataLoader(Pairs(), 64)

if __name__ == "__main__":
    model = Model()
    trainer = L.Trainer(accelerator="cpu", devices={devices}, max_epochs=1, accumulate_grad_batches=4,
                        callbacks=[ModelCheckpoint(monitor="loss")], limit_train_batches=32)
    trainer.fit(model{data})
    print("trained", set(model.sizes), trainer.accumulate_grad_batches, trainer.global_step)
"""


@pytest.fixture(scope="module", autouse=True)
def lightning() -> None:
    need_module("engines", "lightning")


def run_by_hand(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **ENGINE_ENV}
    done = subprocess.run(["bash", "-c", command], env=env, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.parametrize(
    ("package", "data", "compiles"),
    [
        ("lightning.pytorch", "", False),
        pytest.param("pytorch_lightning", ", train_dataloaders=model.train_dataloader()", True, marks=pytest.mark.slow),
    ],
)
def test_a_trial_trains_with_its_settings_and_leaves_nothing(
    tmp_path: Path, package: str, data: str, compiles: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(package=package, devices=1, data=data))
    asked = {"micro_batch": 2, "accumulate_grad_batches": 2, "matmul": "high", "compile": compiles}
    settings = {"set": asked, "steps": 20}
    for name, text in hook_files({"lightning": settings}, "accelerate", "model").items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = run_by_hand(f"PYTHONPATH={tmp_path}/hook {warm_python()} {tmp_path}/train.py", tmp_path)
    run = HookedRun.read(done.stderr)
    [report] = run.reports
    assert (report["batch_sizes"], report["accumulation"], report["processes"]) == ([2], 2, 1)
    assert (len(run.steps), run.samples, run.usual_passes) == (20, 4, 2)
    assert (run.settings["matmul"], run.settings["compile"]) == ("high", compiles)
    assert compiles or (run.model is not None and run.model["class"] == "Linear")
    assert "trained" not in done.stdout and {path.name for path in tmp_path.iterdir()} == {"train.py", "hook"}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_the_best_command_of_a_plain_script_trains_the_same_batch_in_larger_steps(
    zenithtune: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, devices: int
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(package="lightning.pytorch", devices=devices, data=""))
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--strategy", "grid", "--no-early-stop")
    command = (warm_python(), str(tmp_path / "train.py"))
    done = zenithtune("optimize", *options, "--args", "steps=20", "--", *command, env=ENGINE_ENV, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    runs = {run["parameters"].get("mbs"): run["outcome"] for run in study["trials"]}
    verdict = study["search"]["verdict"]
    assert runs[2] == runs[4] == "ok" and (verdict["is_confirmed"] or verdict["is_clear"])
    assert study["best"]["parameters"]["mbs"] == 4 and f"{tmp_path}/out/s/lightning_arguments" in study["best_command"]
    # The 32 samples of an epoch, by updates of 4 on each rank.
    assert "trained {4} 1 8" in run_by_hand(study["best_command"], tmp_path).stdout
