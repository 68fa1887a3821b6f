"""What trials leave next to a script that saves and tracks by default, in the frameworks themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python

Tuned = Callable[..., tuple[str, set[str]]]
PLAIN = """
import argparse, torch, wandb
parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--out", default="model.pt")
args = parser.parse_args()
wandb.init(project="mine")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    model(torch.randn(args.bs, 8)).sum().backward()
    optimizer.step()
    wandb.log({"step": step})
    print("rate:", args.bs)
torch.save(model.state_dict(), args.out)
"""
TRAINER = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Tokens(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return {"input_ids": torch.full((8,), at), "labels": torch.full((8,), at)}

model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                     num_attention_heads=4, num_key_value_heads=2))
args = TrainingArguments("checkpoints", per_device_train_batch_size=2, use_cpu=True, max_steps=6, save_steps=1,
                         logging_steps=1, report_to=["tensorboard", "wandb"])
trainer = Trainer(model, args, train_dataset=Tokens())
trainer.train()
trainer.save_model("final")
"""
LIGHTNING = """
import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(4, 1)
    def training_step(self, batch, at): return self.model(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 1e-3)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), 2)

trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=2, log_every_n_steps=1,
                    logger=[CSVLogger("csv"), TensorBoardLogger("board")],
                    callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=1, save_top_k=-1)])
trainer.fit(Model())
trainer.save_checkpoint("final.ckpt")
"""


@pytest.fixture
def tuned(zenithtune: Callable[..., CompletedProcess[str]]) -> Tuned:
    """Tune a script in its own folder; returns what was printed, and what is in the folder besides the study."""

    def run(folder: Path, script: str, options: Sequence[str], *arguments: str) -> tuple[str, set[str]]:
        (folder / "train.py").write_text(script)
        given = ("--no-confirm", "--strategy", "grid", "--n-trials", "1", "--output-dir", "study", "--study-name", "s")
        command = (warm_python(), "train.py", *arguments)
        done = zenithtune("optimize", *given, *options, "--", *command, env=ENGINE_ENV, timeout=500)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        trials = json.loads((folder / "study/s/study.json").read_text())["trials"]
        assert [trial["outcome"] for trial in trials] == ["ok", "ok"], trials
        return done.stdout + done.stderr, {path.name for path in folder.iterdir()} - {"study", "train.py"}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_trials_of_a_framework_leave_no_checkpoint_log_or_tracker_run(
    tuned: Tuned, tmp_path: Path, script: str
) -> None:
    for module in ("torch", "transformers", "lightning", "wandb"):
        need_module("engines", module)
    output, left = tuned(tmp_path, script, ["--args", "levers=none,steps=4,search=mbs"])
    assert not left and "{trial_folder}" not in output


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_what_a_plain_script_saves_is_named_and_can_be_kept_apart(tuned: Tuned, tmp_path: Path, apart: bool) -> None:
    need_module("engines", "torch")
    options = ("--space", "bs=4,8", "--objective", r"rate: (\d+)", "--maximize")
    (tmp_path / "model.pt").write_text("of another day")
    out = ("--out", "{trial_folder}/model.pt") if apart else ()
    output, left = tuned(tmp_path, PLAIN, options, "--bs", "4", *out)
    assert left == {"model.pt"}, "and no run of wandb"
    assert ("model.pt (overwritten)" in output) == (not apart)
    assert ((tmp_path / "model.pt").read_bytes() == b"of another day") == apart
    assert (tmp_path / "study" / "s" / "trials" / "0001" / "model.pt").is_file() == apart
