"""A command that a study ends with has the words of the user's own, and the options that its preset sets."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mimo.preset.test_preset import COMMAND as MIMO
from tests.presets.accelerate import jobs as accelerate_jobs
from tests.presets.deepspeed import jobs as deepspeed_jobs
from tests.presets.torchtitan.jobs import TOML
from tests.presets.trainer.runs import OPTIONS as TRAINER
from zenith_tune import PresetTuner
from zenith_tune.shell.options import canonical
from zenith_tune.study.parameters import Value

SWIFT = "megatron sft --model some --micro_batch_size 2 --global_batch_size 16"
PRETRAIN = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 32 "
    "--seq-length 4096 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000"
)
SCRIPTS = {
    "plain.sh": f'{SWIFT} "$@"\n',
    "asks.sh": f': "${{LAYOUT:?set LAYOUT}}"\n{SWIFT} "$@"\n',
    "reads.sh": f'{SWIFT} $LAYOUT "$@"\n',
    "pretrain.sh": f': "${{LAYOUT:?set LAYOUT}}"\n{PRETRAIN} $LAYOUT "$@"\n',
    "unknown.sh": 'my_launcher my_trainer "$@"\n',
}
SIZES = "tensor-model|pipeline-model|context|expert-model|expert-tensor"
MEGATRON = rf"--(?:{SIZES})-parallel-size|--(?:micro|global)-batch-size|--recompute-(?:granularity|method|num-layers)"
FOLDED = rf"{MEGATRON}|--vit-gradient-checkpointing|--sequence-parallel"
SWITCHES = "--use-distributed-optimizer|--sequence-parallel|--overlap-.*|--(?:no-)?[a-z0-9-]*fusion|--optimizer.*"
MEGATRON_ARGS = {"n_gpus": "8", "gbs": "16"}
PRESETS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "demo": (["python mine.py", "bash unknown.sh", "LAYOUT=us python mine.py"], MEGATRON_ARGS, MEGATRON),
    "megatron": (
        ["bash train.sh", "python mine.py --lr 1", SWIFT, *(f"bash {name}" for name in SCRIPTS)],
        MEGATRON_ARGS,
        rf"{MEGATRON}|--vit-gradient-checkpointing",
    ),
    "megatron folding": (
        ["bash train.sh", SWIFT, PRETRAIN, *(f"bash {name}" for name in SCRIPTS)],
        {**MEGATRON_ARGS, "folding": "true"},
        FOLDED,
    ),
    "megatron-lm": ([PRETRAIN, "bash pretrain.sh"], {"cluster": "h100x8"}, rf"{MEGATRON}|{SWITCHES}|--num-virtual.*"),
    "mimo": ([MIMO], {}, r"--(?:encoder|llm)-.*|--micro-batch-size|--batch-size"),
    "deepspeed": ([deepspeed_jobs.command(Path("ds.json"))], {}, "--deepspeed-config"),
    "accelerate": ([accelerate_jobs.command(Path("own.yaml"))], {}, "--config-file|--batch-size|env|ACCELERATE_.*"),
    "trainer": ([TRAINER], {}, "--per-device-.*|--gradient-.*|--deepspeed|--fsdp.*|--tf32|--optim"),
    "torchtitan": (
        ["torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file job.toml"],
        {"cluster": "h100x8"},
        r"--(?:training|parallelism|activation-checkpoint|compile)\..*",
    ),
}
"""Commands of each preset, its arguments, and the options that it sets."""
FRONTS = ("", "A='b c' ", "env LAYOUT=us ", "cd . && ", "export LAYOUT=us; ")
BEHIND = ("", " 2>&1 | tee my.log")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in SCRIPTS.items():
        Path(name).write_text(text)
    deepspeed_jobs.write(tmp_path, deepspeed_jobs.PLAIN)
    accelerate_jobs.write(tmp_path, "MULTI_GPU")
    Path("job.toml").write_text(TOML)


def commands(body: str) -> Iterator[str]:
    for front, behind in itertools.product(FRONTS, BEHIND):
        yield f"{front}{body}{behind}"


def others(before: str, after: str, options: str) -> list[str]:
    """Return the words that only one of two commands has, and that are no such option nor its value."""
    found = []
    for one, other in ((before, after), (after, before)):
        known, last = Counter(shlex.split(other)), ""
        for word in shlex.split(one):
            known[word] -= 1
            name = word.partition("=")[0]
            name = canonical(name) if name.startswith("--") else name
            if known[word] < 0 and not re.fullmatch(options, name) and not re.fullmatch(options, last):
                found.append(word)
            last = name if word.startswith("--") else ""
    return found


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("exported", [None, "--seed 3"])
def test_a_command_has_no_words_but_the_users_and_the_options_of_its_preset(
    preset: str, exported: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies, args, options = PRESETS[preset]
    if exported is not None:
        monkeypatch.setenv("LAYOUT", exported)
    for body in bodies:
        points: list[dict[str, Value]] = []  # whatever stands around it, it is the same job
        for command in commands(body):
            made = PresetTuner(command, preset.partition(" ")[0], tune_args=args).preset
            points = points or list(itertools.islice(made.points(), 0, 2000, 397))
            assert points
            for point in points:
                edited = made.result_command(command, point, tmp_path) or made.apply_parameters(command, point)
                assert others(command, edited, options) == [], edited
