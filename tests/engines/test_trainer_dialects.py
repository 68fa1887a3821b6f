"""LLaMA-Factory and Axolotl themselves, on CPU, where they are installed: a study, and its best command run by hand.

Checked with llamafactory 0.9.5 (trl 0.24, peft 0.18), and axolotl 0.19 (trl 1.9, peft 0.20), both with transformers
5.22, which is newer than either asks for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module

Tune = Callable[..., subprocess.CompletedProcess[str]]
ENV = {**ENGINE_ENV, "HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
ENV |= {"ACCELERATE_USE_CPU": "true"}
MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
words = {word: at for at, word in enumerate(["<unk>", "<s>", "</s>", "<pad>", *letters])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(), pre_tokenizers.Split("", "isolated")])
tokenizer.decoder = decoders.ByteLevel()
names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(sys.argv[1])
LlamaForCausalLM(LlamaConfig(vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2)).save_pretrained(sys.argv[1])
"""
GIVEN = ("--no-confirm", "--no-early-stop", "--n-trials", "1", "--strategy", "grid")


def write_job(tmp_path: Path) -> Path:
    """Write a tiny model and 64 samples into the folder."""
    subprocess.run([sys.executable, "-c", MODEL, str(tmp_path / "model")], check=True, capture_output=True, timeout=500)
    rows = [{"instruction": f"add {at}", "input": "", "output": str(at) * (at % 9 + 1)} for at in range(64)]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    (tmp_path / "dataset_info.json").write_text(json.dumps({"tiny": {"file_name": "data.json"}}))
    return tmp_path


def tuned(zenithtune: Tune, folder: Path, command: str, config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the study of a command with this file, and the command of its only trial without what is a trial's."""
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    options = ("--output-dir", str(folder / "out"), "--study-name", "s", *GIVEN)
    words = (*command.split(), str(folder / "own.yaml"))
    args = ("--args", "levers=none,steps=4,search=checkpointing")
    done = zenithtune("optimize", *options, *args, "--", *words, env=ENV, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((folder / "out" / "s" / "study.json").read_text())
    assert [run["outcome"] for run in study["trials"]] == ["ok", "ok"]
    assert not (folder / "own").exists(), "nothing is saved, neither by the trials nor by the baseline"
    return study, study["trials"][1]["command"]


@pytest.mark.slow
@pytest.mark.own_environment
def test_llama_factory_is_tuned_by_overrides(zenithtune: Tune, tmp_path: Path) -> None:
    need_module("llamafactory", "llamafactory")
    job = write_job(tmp_path)
    config = {
        "stage": "sft",
        "finetuning_type": "full",
        "do_train": True,
        "template": "alpaca",
        "cutoff_len": 512,
        "model_name_or_path": str(job / "model"),
        "dataset": "tiny",
        "dataset_dir": str(job),
        "output_dir": str(job / "own"),
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "use_cpu": True,
    }
    program = f"{sys.executable} -m llamafactory.cli train"
    _, command = tuned(zenithtune, job, program, config)
    assert "disable_gradient_checkpointing=true" in command
    by_hand = f"{program} {job}/own.yaml disable_gradient_checkpointing=true max_steps=1"
    done = subprocess.run(by_hand.split(), env={**os.environ, **ENV}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Gradient checkpointing enabled" not in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.own_environment
def test_axolotl_is_tuned_by_options(zenithtune: Tune, tmp_path: Path) -> None:
    need_module("axolotl", "axolotl")
    job = write_job(tmp_path)
    config = {
        "base_model": str(job / "model"),
        "sequence_len": 1024,
        "output_dir": str(job / "own"),
        "datasets": [{"path": str(job / "data.json"), "ds_type": "json", "type": "alpaca"}],
        "dataset_prepared_path": str(job / "prepared"),
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": "adamw_torch",
        "learning_rate": 1e-4,
        "num_epochs": 1,
        "bf16": False,
        "tf32": False,
        "attn_implementation": "sdpa",
        "val_set_size": 0,
        "special_tokens": {"pad_token": "<pad>"},
    }
    _, command = tuned(zenithtune, job, f"{sys.executable} -m axolotl.cli.train", config)
    assert "--gradient-checkpointing true" in command and "--output-dir" in command
