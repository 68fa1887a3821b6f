"""Hugging Face's Trainer itself, on CPU: from a command that people type to one that runs without us."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.describe.fake_smi import install
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune.hooks.injection import hook_events

Tune = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = """
import dataclasses
import torch
from transformers import EarlyStoppingCallback, HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer
from transformers import TrainingArguments

class Tokens(torch.utils.data.{data}):
    def __len__(self): return 64
    def __getitem__(self, at):
        tokens = torch.randint(128, (16,), generator=torch.Generator().manual_seed(at))
        return {{"input_ids": tokens, "labels": tokens}}
    def __iter__(self): return (self[at] for at in range(64))

{arguments}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2))
trainer = Trainer(model, args, train_dataset=Tokens(), eval_dataset=Tokens(), callbacks={callbacks})
trainer.train()
print("trained", args.per_device_train_batch_size, args.gradient_accumulation_steps, args.gradient_checkpointing)
trainer.save_model()
"""
BY_OPTIONS = SCRIPT.format(
    data="Dataset", arguments="[args] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()", callbacks=[]
)
IN_PYTHON = SCRIPT.format(
    data="IterableDataset",
    arguments="""
@dataclasses.dataclass
class OwnArguments(TrainingArguments):
    beta: float = 0.1
args = OwnArguments("mine", per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, max_steps=4,
                    eval_strategy="steps", eval_steps=2, save_steps=2, load_best_model_at_end=True, report_to="none",
                    metric_for_best_model="eval_loss")
""",
    callbacks="[EarlyStoppingCallback(2)]",
)
OF_A_FILE = BY_OPTIONS.replace("parse_args_into_dataclasses()", "parse_yaml_file(__import__('sys').argv[1])")


@pytest.fixture(scope="module", autouse=True)
def transformers() -> None:
    for module in ("torch", "accelerate", "transformers"):
        need_module("engines", module)


def tune(
    zenithtune: Tune,
    folder: Path,
    script: str,
    *arguments: str,
    preset_args: str,
    strategy: tuple[str, ...] = (),
    python: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Tune a script on what nvidia-smi calls an H100; returns the output and the study."""
    install(folder / "nvidia-smi", 'if [ "$1" = -L ]; then echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"; fi')
    (folder / "train.py").write_text(script)
    env = {**ENGINE_ENV, "PATH": f"{folder}:{os.environ['PATH']}"}
    # So long a training that a trial pays on the slowest machine.
    long = ("--no-confirm", "--no-early-stop", "--train-hours", "10000")
    options = ("--output-dir", str(folder / "out"), "--study-name", "s", *long)
    command = (*shlex.split(python or warm_python()), str(folder / "train.py"), *arguments)
    given = ("--n-trials", "1", "--args", f"levers=none,steps=6,{preset_args}", *strategy)
    done = zenithtune("optimize", "-v", *options, *given, "--", *command, env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, json.loads((folder / "out" / "s" / "study.json").read_text())


def run_by_hand(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **ENGINE_ENV},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "zenithtune: " not in done.stderr, "the hook is for trials"
    return done


@pytest.mark.timeout(900)
def test_a_script_with_options_is_planned_and_its_trial_trains_the_same_batch(
    zenithtune: Tune, tmp_path: Path, python: str
) -> None:
    given = ("--output_dir", str(tmp_path / "own"), "--per_device_train_batch_size", "4", "--use_cpu")
    own = (*given, "--gradient_accumulation_steps=2", "--num_train_epochs", "9999", "--save_steps", "1")
    script = (ROOT / "examples" / "trainer_train.py").read_text()
    output, study = tune(zenithtune, tmp_path, script, *own, preset_args="search=mbs,mbs_max=8", python=python)
    assert study["search"]["strategy"] == "guided" and "LlamaForCausalLM on h100x1" in output
    base, trial = study["trials"]
    assert [run["outcome"] for run in (base, trial)] == ["ok", "ok"] and trial["unit"] == "samples/s"
    mbs = trial["parameters"]["mbs"]
    words = shlex.split(trial["command"])
    assert words[words.index("--per_device_train_batch_size") + 1] == str(mbs) != "4"
    assert f"--gradient_accumulation_steps={8 // mbs}" in words
    assert not (tmp_path / "own").exists(), "nothing is saved, neither by the trials nor by the baseline"


@pytest.mark.parametrize(("num_ranks", "search", "num_trials"), [(1, "default", 5), (2, "mbs", 2)])
@pytest.mark.slow
def test_points_that_differ_in_batch_and_checkpointing_share_one_start(
    zenithtune: Tune, tmp_path: Path, num_ranks: int, search: str, num_trials: int
) -> None:
    own = ("--output_dir", "own", "--per_device_train_batch_size", "1", "--use_cpu", "--gradient_accumulation_steps=4")
    script = (ROOT / "examples" / "trainer_train.py").read_text()
    every = ("--n-trials", str(num_trials), "--strategy", "grid")
    launcher = f" -m torch.distributed.run --standalone --nproc-per-node {num_ranks}" if num_ranks > 1 else ""
    given = f"mbs_max=4,search={search}"
    _, study = tune(
        zenithtune, tmp_path, script, *own, preset_args=given, strategy=every, python=warm_python() + launcher
    )
    base, *trials = study["trials"]
    assert [trial["outcome"] for trial in trials] == ["ok"] * num_trials
    seen = []
    for trial in (base, *trials):
        made, *others = [event for event in events_of(trial) if event["event"] == "trainer"]
        assert len(others) == num_ranks - 1, "each rank"
        steps = [event for event in events_of(trial) if event["event"] == "step"]
        point = trial["parameters"] or {"mbs": 1, "checkpointing": False}
        batch = (made["arguments"]["per_device_train_batch_size"], steps[-1]["passes"], steps[-1]["samples"])
        assert batch == (point["mbs"], 4 // point["mbs"], 4 * num_ranks), trial
        assert made["arguments"]["gradient_checkpointing"] == point["checkpointing"]
        assert [step["step"] for step in steps][:6] == [1, 2, 3, 4, 5, 6]
        seen.append(tuple(sorted(event["process"] for event in (made, *others))))
    # Another micro-batch than one's own must have gone well before one is set in its place.
    num_shared = num_trials - (search == "default")
    assert seen[0] not in seen[1:] and len(set(seen[-num_shared:])) == 1


CHANGES = """
import collections, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
sys.path.insert(0, {hooks!r})
from hooks.trainer import change

class Tokens(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return {{"input_ids": torch.full((16,), at), "labels": torch.full((16,), at)}}

model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2))
calls = collections.Counter()
def note(layer, given, output):
    frames, at = 0, sys._getframe()
    while at := at.f_back:
        frames += 1
    calls[tuple(given[0].shape[:1]), str(output.dtype), layer.training, frames] += 1
args = TrainingArguments("own", per_device_train_batch_size=1, gradient_accumulation_steps=4, bf16=True, use_cpu=True,
                         max_steps=3, report_to="none", save_strategy="no", disable_tqdm=True)
trainer = Trainer(model, args, train_dataset=Tokens())
model.model.layers[0].mlp.down_proj.register_forward_hook(note)
for size in (1, 2, 1, 4, 1):
    change(trainer, {{"per_device_train_batch_size": size, "gradient_accumulation_steps": 4 // size}})
    calls.clear()
    trainer.train()
    print("calls", size, trainer.state.global_step, sorted(calls.items()))
"""


def test_a_trainer_that_is_changed_trains_as_one_that_was_made_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CHANGES.format(hooks=str(ROOT / "src" / "zenith_tune")))
    done = run_by_hand(f"{warm_python()} {tmp_path}/train.py", tmp_path)
    found = [line.split(maxsplit=3) for line in done.stdout.splitlines() if line.startswith("calls")]
    made, twice, again, whole, last = (calls for _, _, steps, calls in found if steps == "3")
    assert made == again == last and "(1,), 'torch.bfloat16', True" in made, "in its precision, by the same calls"
    assert made.endswith("12)]") and twice.endswith("6)]") and whole.endswith("3)]")
    assert made.replace("(1,)", "(4,)").replace("12)]", "3)]") == whole


def events_of(trial: dict[str, Any]) -> list[dict[str, Any]]:
    return hook_events((Path(trial["folder"]) / "log.txt").read_text())


@pytest.mark.slow
def test_arguments_in_python_are_set_by_the_hook_in_trials_and_in_the_best_command(
    zenithtune: Tune, tmp_path: Path
) -> None:
    output, study = tune(zenithtune, tmp_path, IN_PYTHON, preset_args="search=mbs")
    base, trial = study["trials"]
    assert [run["outcome"] for run in (base, trial)] == ["ok", "ok"] and base["unit"] == "samples/s"
    assert not (tmp_path / "mine").exists() and "preset trainer" in output
    mbs = trial["parameters"]["mbs"]
    hook = tmp_path / "out" / "s" / "trials" / "0001" / "hook"
    asked = json.loads((hook / "hooks.json").read_text())["trainer"]["set"]
    assert asked["per_device_train_batch_size"] == mbs and asked["gradient_accumulation_steps"] == 4 // mbs
    # As for the best command, which may be the user's own on a machine that is busy.
    settings = {"set": {"per_device_train_batch_size": 1, "max_steps": 2}}
    (hook / "hooks.json").write_text(json.dumps({"trainer": settings}))
    (hook / "zenithtune_hooks" / "stages.py").unlink()
    done = run_by_hand(f"PYTHONPATH={hook} {warm_python()} {tmp_path}/train.py", tmp_path)
    assert "trained 1 2 False" in done.stdout and (tmp_path / "mine").exists()


@pytest.mark.slow
def test_a_file_of_arguments_is_changed_in_a_copy_that_runs_by_itself(zenithtune: Tune, tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("output_dir: own\nper_device_train_batch_size: 2\nmax_steps: 3\nuse_cpu: true\nreport_to: none\n")
    grid = ("--strategy", "grid")
    _, study = tune(zenithtune, tmp_path, OF_A_FILE, str(path), preset_args="search=checkpointing", strategy=grid)
    _, trial = study["trials"]
    assert trial["outcome"] == "ok" and trial["parameters"] == {"mbs": 2, "checkpointing": True}
    copy = tmp_path / "out" / "s" / "trials" / "0001" / "trainer_arguments.yaml"
    done = run_by_hand(f"{warm_python()} {tmp_path}/train.py {copy}", tmp_path)
    assert "trained 2 1 True" in done.stdout


@pytest.mark.slow
def test_two_ranks_keep_the_global_batch(zenithtune: Tune, tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(BY_OPTIONS)
    command = [warm_python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), "--use_cpu"]
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-confirm", "--n-trials", "1")
    given = ("--args", "levers=none,steps=6,search=mbs,mbs_max=1")
    arguments = ("--output_dir", "own", "--per_device_train_batch_size", "2")
    done = zenithtune("optimize", "-v", *options, *given, "--", *command, *arguments, env=ENGINE_ENV, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    base, trial = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["trials"]
    assert [run["outcome"] for run in (base, trial)] == ["ok", "ok"] and trial["parameters"]["mbs"] == 1
    log = (tmp_path / "out" / "s" / "trials" / "0001" / "log.txt").read_text()
    assert '"samples": 4' in log and '"wrapper": "DistributedDataParallel"' in log


@pytest.mark.slow
def test_a_loop_without_a_trainer_is_ended_and_says_what_to_do(zenithtune: Tune, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "while True:\n    model(torch.ones(2)).sum().backward()\n    optimizer.step()\n"
    )
    command = (warm_python(), str(tmp_path / "loop.py"))
    done = zenithtune(
        "optimize", "-v", "--output-dir", str(tmp_path / "out"), "--", *command, env=ENGINE_ENV, timeout=500
    )
    assert done.returncode == 2 and "--space" in done.stderr and len(done.stderr.strip().splitlines()) == 1


VARIED = """
import time
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

clock = [0.0]
time.monotonic = lambda: clock[0]  # a batch takes a second, so that few large ones are faster on any machine

class Tokens(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, at): return {"input_ids": torch.full((64 if at % 500 == 7 else 4 + at % 3,), 7)}

def collate(samples):
    clock[0] += 1.0
    tokens = pad_sequence([sample["input_ids"] for sample in samples], batch_first=True)
    if tokens.numel() > 300:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                                     "79.11 GiB of which 1.00 GiB is free.")
    return {"input_ids": tokens, "labels": tokens}

[args] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                     num_attention_heads=4, num_key_value_heads=2))
Trainer(model, args, train_dataset=Tokens(), data_collator=collate).train()
"""


@pytest.mark.slow
def test_the_winner_is_confirmed_on_the_longest_samples_and_a_smaller_batch_chosen_where_it_does_not_fit(
    zenithtune: Tune, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(VARIED)
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--strategy", "grid", "--no-early-stop")
    given = ("--args", "levers=none,steps=6,search=mbs")
    own = ("--output_dir", "own", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4")
    command = (warm_python(), str(tmp_path / "train.py"), *own, "--use_cpu")
    done = zenithtune("optimize", "-v", *options, *given, "--", *command, env=ENGINE_ENV, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    runs = [(run["parameters"].get("mbs"), run["outcome"]) for run in study["trials"] if not run["is_baseline"]]
    assert sorted(runs[:3]) == [(1, "ok"), (4, "ok"), (8, "ok")], "the short trials do not meet a long sample"
    assert runs[3:] == [(8, "oom"), (4, "ok")], "the largest of all is ruled out, and the next one confirmed"
    assert study["best"]["parameters"]["mbs"] == 4 and study["best"]["longest_sample"] == 64
    verdict = study["search"]["verdict"]
    assert verdict["is_confirmed"] and verdict["confirmed_on"] and verdict["confirmed_on"] in done.stdout
    assert "--per_device_train_batch_size 4" in study["best_command"]


@pytest.mark.slow
def test_two_ranks_share_a_model_by_deepspeed(zenithtune: Tune, tmp_path: Path) -> None:
    need_module("engines", "deepspeed")
    script = tmp_path / "ranks.py"
    # Compiling the kernel that CPU ranks could share memory by takes minutes.
    plain = 'import deepspeed\ndeepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False\n'
    script.write_text(plain + BY_OPTIONS)
    command = [warm_python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), "--use_cpu"]
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-confirm", "--no-early-stop")
    given = ("--strategy", "grid", "--n-trials", "1", "--args", "levers=none,steps=6,search=sharding")
    arguments = ("--output_dir", "own", "--per_device_train_batch_size", "2")
    env = {**ENGINE_ENV, "DS_ACCELERATOR": "cpu"}
    done = zenithtune("optimize", "-v", *options, *given, "--", *command, *arguments, env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    base, trial = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["trials"]
    assert (trial["parameters"]["sharding"], trial["outcome"]) == ("zero1", "ok")
    assert (base["wrapper"], trial["wrapper"]) == ("DistributedDataParallel", "DeepSpeedEngine")
    log = (tmp_path / "out" / "s" / "trials" / "0001" / "log.txt").read_text()
    assert '"zero_optimization.stage": 1' in log and '"samples": 4' in log
