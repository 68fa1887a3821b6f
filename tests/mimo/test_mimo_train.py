"""examples/mimo_train.py: the same training in every layout, in Megatron's log lines."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT
from tests.mentions import mentions
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

Start = Callable[..., subprocess.CompletedProcess[str]]
TRAINER = "examples/mimo_train.py"
SMALL = "--encoder-layers 2 --llm-layers 2 --global-batch-size 8 --train-iters 6 --use-distributed-optimizer"


def losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"lm loss: (\S+) \|", output)]


def train(start: Start, *options: str) -> str:
    done = start(TRAINER, *SMALL.split(), *" ".join(options).split())
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_layouts_print_the_same_losses_also_from_a_checkpoint_of_another(start_warm: Start, tmp_path: Path) -> None:
    colocated = train(start_warm, "--encoder-dp 2 --llm-tp 2 --llm-offset 0 --micro-batch-size 2 --llm-recompute")
    begun = train(start_warm, f"--llm-pp 2 --train-iters 3 --save {tmp_path}/half")
    ended = train(start_warm, f"--encoder-tp 2 --llm-dp 2 --load {tmp_path}/half --lr 0.5")
    assert len(losses(colocated)) == 6 and len(losses(begun)) == len(losses(ended)) == 3
    assert losses(begun) + losses(ended) == pytest.approx(losses(colocated), rel=2e-5)
    assert MegatronEvaluator("step_time").evaluate(colocated, {}) > 0
    # What is printed is what is used: the checkpoint's rate, and once that --lr is not.
    assert set(re.findall(r"learning rate: (\S+)", ended)) == {"1.000000E-03"}
    [note] = [line for line in ended.splitlines() if line.startswith("note:")]
    assert mentions(note, "0.001", "--lr 0.5")
    assert "note:" not in begun + colocated


@pytest.mark.slow
def test_what_was_trained_frozen_is_trained_on_from_its_weights(start_warm: Start, tmp_path: Path) -> None:
    train(start_warm, f"--freeze-vit --freeze-lm --train-iters 2 --save {tmp_path}/one")
    refused = start_warm(TRAINER, *SMALL.split(), "--load", f"{tmp_path}/one")
    assert refused.returncode == 2 and all(mentions(line, "--finetune") for line in refused.stderr.splitlines())
    output = train(start_warm, f"--load {tmp_path}/one --finetune --lr 0.01 --train-iters 2 --save {tmp_path}/two")
    assert re.findall(r"iteration +(\d)/.*consumed samples: +(\d+) .*rate: (\S+)", output) == [
        ("1", "8", "1.000000E-02"),
        ("2", "16", "1.000000E-02"),
    ]
    more = train(start_warm, f"--load {tmp_path}/two --global-batch-size 4 --train-iters 3")
    assert re.findall(r"consumed samples: +(\d+)", more) == ["20"]


@pytest.mark.slow
def test_torchrun_starts_its_ranks_too(start: Start) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = start(*launcher, TRAINER, "--train-iters", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(losses(done.stdout)) == 1


@pytest.mark.slow
def test_under_torchrun_a_mistake_is_reported_by_one_rank_with_exit_code_2(start: Start) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = start(*launcher, TRAINER, "--llm-dp", "2", python=(warm_python(),))
    assert done.returncode != 0 and done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and mentions(errors[0], "3 ranks", "2"), done.stderr
    # The launcher ends the ranks that have said nothing; its own report is all that follows.
    assert re.search(r"rank +: \d .*\n +exitcode +: 2 ", done.stderr) and 'mimo_train.py", line' not in done.stderr


@pytest.fixture(scope="module")
def example(has_torch: None) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mimo_train", ROOT / TRAINER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--encoder-dp 2 --llm-dp 3", ("2", "3")),
        ("--encoder-dp 2", ("1 * 1 = 1", "2")),
        ("--llm-offset 3", ("3",)),
        ("--images 1,x", ("--images", "'1,x'")),
        ("--device-flops 1e9", ("--device-flops",)),
        ("--llm-hidden 30", ("30", "4")),
        ("--llm-tp 3", ("4", "tp 3")),
        ("--llm-pp 9", ("pp 9", "6 layers")),
        ("--vocab-size 250 --llm-tp 4", ("250", "tp 4")),
        ("--encoder-layers 0", ("--encoder-layers", "1", "0")),
        ("--images 9", ("9 items", "4 patches")),
        ("--llm-heads 0", ("--llm-heads", "1", "0")),
        ("--llm-hidden 0", ("--llm-hidden", "1", "0")),
        ("--lr nan", ("lr", "1e+30", "nan")),
        ("--lr 1e300", ("lr", "1e+30", "1e+300")),
        ("--clip-grad -1", ("clip_grad", "1e+30", "-1")),
        ("--log-interval 0", ("--log-interval", "1", "0")),
        ("--timeout-s inf", ("--timeout-s", "0", "inf")),
        ("--vocab-size 1", ("tokens", "1")),
        ("--llm-dp two", ("--llm-dp", "'two'")),
        ("--load no-such-folder", ("no-such-folder",)),
        ("--finetune", ("--finetune", "--load")),
        ("--save README.md", ("--save", "README.md")),
        ("--save /proc/none", ("--save /proc/none",)),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    named: tuple[str, ...],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [TRAINER, *options.split()])
    assert example.main() == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("error: ") and mentions(captured.err, *named)


MAKE_MODELS = """
import sys
from transformers import Qwen3Config, Qwen3ForCausalLM, SiglipVisionConfig, SiglipVisionModel
sizes = {"intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
tower = SiglipVisionConfig(hidden_size=16, image_size=8, patch_size=4, vision_use_head=False, **sizes)
SiglipVisionModel(tower).save_pretrained(sys.argv[1] + "/siglip")
text = {"hidden_size": 32, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": False}
Qwen3ForCausalLM(Qwen3Config(**text, **sizes)).save_pretrained(sys.argv[1] + "/qwen3")
"""


@pytest.mark.slow
def test_the_script_with_models_of_hugging_face_prints_the_same_losses_in_every_layout(
    start_warm: Start, tmp_path: Path
) -> None:
    need_module("engines", "transformers")
    made = subprocess.run([warm_python(), "-c", MAKE_MODELS, str(tmp_path)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    script = ["examples/mimo_hugging_face.py", "--vision", f"{tmp_path}/siglip", "--language", f"{tmp_path}/qwen3"]
    script += ["--seq-length", "12", "--global-batch-size", "4", "--train-iters", "3"]
    found = []
    for layout in ("--llm-pp 2", "--encoder-dp 2 --llm-dp 2 --llm-offset 0 --llm-recompute"):
        done = start_warm(*script, *layout.split())
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(losses(done.stdout))
        assert MegatronEvaluator("step_time").evaluate(done.stdout, {}) > 0
    assert len(found[0]) == 3 and found[0] == pytest.approx(found[1], rel=1e-4)
    for wrong in (["--llm-dp", "3"], ["--seq-length", "4"], ["--language", f"{tmp_path}/none"]):
        refused = start_warm(*script, *wrong)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1
