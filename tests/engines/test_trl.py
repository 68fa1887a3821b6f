"""TRL's GRPO itself, on CPU: another micro-batch trains as many samples, and generates as many at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune import diagnose
from zenith_tune.hooks.injection import hook_events

SCRIPT = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, TrlParser

words = {f"w{at}": at for at in range(60)} | {"<pad>": 60, "<eos>": 61, "<unk>": 62}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                     num_attention_heads=4, num_key_value_heads=2, pad_token_id=60, eos_token_id=61))
own = dict(use_cpu=True, bf16=False, num_generations=4, max_completion_length=4)
ARGUMENTS
data = Dataset.from_list([{"prompt": f"w{at % 60} w{at * 7 % 60}"} for at in range(512)])
reward = lambda completions, **more: [float(len(each)) for each in completions]
GRPOTrainer(model, reward, args, train_dataset=data, processing_class=tokenizer).train()
"""
BY_OPTIONS = SCRIPT.replace("ARGUMENTS", "[args] = TrlParser((GRPOConfig,)).parse_args_and_config()")
IN_PYTHON = SCRIPT.replace(
    "ARGUMENTS",
    'args = GRPOConfig("mine", per_device_train_batch_size=2, gradient_accumulation_steps=2, steps_per_generation=4,'
    " **own)",
)
OPTIONS = (
    *("--output_dir", "own", "--use_cpu", "--bf16", "False", "--num_generations", "4", "--max_completion_length", "4"),
    *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("script", "options", "num_generated"),
    [
        (BY_OPTIONS, OPTIONS, 4),
        (BY_OPTIONS, (*OPTIONS, "--steps_per_generation", "4"), 8),
        (BY_OPTIONS, (*OPTIONS, "--generation_batch_size", "8"), 8),
        (IN_PYTHON, (), 8),
    ],
    ids=["neither", "steps", "batch", "in Python"],
)
def test_trials_of_grpo_train_and_generate_as_many_samples_as_the_users_own_command(
    zenithtune: Callable[..., CompletedProcess[str]],
    tmp_path: Path,
    script: str,
    options: tuple[str, ...],
    num_generated: int,
) -> None:
    for module in ("torch", "transformers", "trl"):
        need_module("engines", module)
    (tmp_path / "train.py").write_text(script)
    command = (warm_python(), str(tmp_path / "train.py"), *options)
    study = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", "--strategy", "grid", "--no-confirm")
    given = ("--no-early-stop", "--train-hours", "10000", "--args", "levers=none,steps=6,search=mbs")
    done = zenithtune("optimize", *study, *given, "--", *command, env=ENGINE_ENV, timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    base, *trials = json.loads((tmp_path / "out" / "s" / "study.json").read_text())["trials"]
    assert {trial["parameters"]["mbs"] for trial in trials} == {1, 4}
    for trial in (base, *trials):
        assert trial["outcome"] == "ok", trial["cause"]
        events = hook_events((Path(trial["folder"]) / "log.txt").read_text())
        [made] = [event["arguments"] for event in events if event["event"] == "trainer"]
        assert made["per_device_train_batch_size"] * made["gradient_accumulation_steps"] == 4
        assert made["generation_batch_size"] == num_generated
        phases = [trial[f"phase:{name}"] for name in ("generation", "rewards", "training")]
        assert min(phases) > 0 and phases[1] < phases[0]
    diagnosis = diagnose(tmp_path / "out" / "s")
    assert {"generation", "rewards", "training"} == diagnosis.measured.phases_s.keys()
    assert not (tmp_path / "mine").exists() and not (tmp_path / "own").exists()
