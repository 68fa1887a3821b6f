"""Megatron's own verdicts on levers, recorded in lever_verdicts.csv, against what the preset offers.

The verdicts are those of parse_args, validate_args, TransformerConfig, OptimizerConfig and
DistributedDataParallelConfig of Megatron-LM's tags and main of 2026-08-22 on the commands that the preset writes:
each lever once, and random sets of those that go together, on random layouts. The refused rows have a lever that the
preset does not offer there. They ran with torch 2.13 on a CPU that said to be a Hopper, with stand-ins for Transformer
Engine's fused kernels and its version 2.12: what it refuses when the model is built is not among them.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.presets.megatron.levers.test_offered import RELEASES
from tests.presets.megatron.test_verdicts import MODELS as SHAPES
from zenith_tune.presets.levers import Lever, goes_with
from zenith_tune.presets.megatron.levers.offered import LEVERS
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params

NO_FUSION = "--no-gradient-accumulation-fusion"
OFF = (
    "--no-bias-swiglu-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion "
    "--no-gradient-accumulation-fusion --no-masked-softmax-fusion --accumulate-allreduce-grads-in-fp32"
)
FSDP = "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim_grads_params"
CUSTOM_FSDP = FSDP.replace("--use-megatron-fsdp --ckpt-format fsdp_dtensor", f"--use-custom-fsdp {NO_FUSION}")
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
MODELS = {
    **SHAPES,
    "llama8b-plain": f"{SHAPES['llama8b']} {OFF}",
    "gpt-plain": f"{SHAPES['gpt']} {OFF}",
    "llama8b-local": f"{SHAPES['llama8b']} {OFF} --transformer-impl local",
    "llama8b-free": SHAPES["llama8b"],
    "moe48-free": f"{SHAPES['moe48']} --moe-grouped-gemm",
    "mixtral-bare": SHAPES["mixtral"].replace(" --moe-token-dispatcher-type alltoall", ""),
    "llama8b-unfused": f"{SHAPES['llama8b']} --attention-backend unfused",
    "shared": f"{SHAPES['moe48']} --moe-shared-expert-intermediate-size 768",
    "llama8b-own": f"{SHAPES['llama8b']} --overlap-grad-reduce {FULL}",
    "llama8b-sharded-free": f"{SHAPES['llama8b']} {FSDP}",
    "llama8b-torch-free": f"{SHAPES['llama8b']} --use-torch-fsdp2 {NO_FUSION}",
}
"""Those that end in -free do not set CUDA_DEVICE_MAX_CONNECTIONS."""
JOBS = {8: (32, 4096), 16: (48, 2048), 64: (256, 8192), 128: (512, 4096)}
"""Global batch and sequence length by GPUs."""
ALWAYS_ONE_CONNECTION = ("0.9", "0.10", "0.11")
UNFUSED_LATENT = ("0.11", "0.12")
"""Releases that refuse latent attention unless --no-rope-fusion is given."""


class Verdict(NamedTuple):
    """One row of the table."""

    release: str
    model: str
    gpus: int
    gpu: str
    point: Params
    levers: frozenset[str]
    accepted: bool


def command(release: str, model: str, gpus: int, tree: Path) -> str:
    """Return the command that was judged."""
    batch, sequence = JOBS[gpus]
    shape = MODELS[model] + (" --no-rope-fusion" if model == "latent" and release in UNFUSED_LATENT else "")
    if release in ("0.12", "0.13"):
        shape = shape.replace(FSDP, CUSTOM_FSDP)
    if release == "0.9":
        shape = re.sub(r" --moe-ffn-hidden-size \d+", "", shape)
    is_free = model.endswith("-free") and release not in ALWAYS_ONE_CONNECTION
    sharding = "" if "--use-torch-fsdp2" in shape else "--use-distributed-optimizer "
    connections = "" if is_free else "CUDA_DEVICE_MAX_CONNECTIONS=1 "
    return (
        f"{connections}torchrun --nproc-per-node 8 --nnodes {gpus // 8} {tree}/pretrain_gpt.py {shape} "
        f"--seq-length {sequence} --max-position-embeddings {sequence} --micro-batch-size 1 "
        f"--global-batch-size {batch} --bf16 --lr 1e-4 {sharding}--tokenizer-type NullTokenizer "
        "--vocab-size 32000 --train-iters 10"
    )


@cache
def verdicts() -> list[Verdict]:
    with Path(__file__).with_name("lever_verdicts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Verdict(
            release=row["release"],
            model=row["model"],
            gpus=int(row["gpus"]),
            gpu=row["gpu"],
            point={
                name: int(value) if value.isdigit() else value
                for name, _, value in (word.partition("=") for word in row["point"].split())
            },
            levers=frozenset(row["levers"].split()),
            accepted=row["accepted"] == "1",
        )
        for row in rows
    ]


class Judged:
    """Ask the preset of every row once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._presets: dict[tuple[str, str, int, str], tuple[MegatronLmPreset, str]] = {}

    def _preset(self, row: Verdict) -> tuple[MegatronLmPreset, str]:
        key = row.release, row.model, row.gpus, row.gpu
        if key not in self._presets:
            text = command(row.release, row.model, row.gpus, self._tree(row.release))
            search = "tp+pp+vp+cp+mbs+recompute+zero" + ("+ep+etp" if "--num-experts" in text else "")
            preset = MegatronLmPreset(cluster=f"{row.gpu}x{row.gpus}", search=search, mbs_max=2, allow="default")
            preset.bind(text)
            self._presets[key] = preset, text
        return self._presets[key]

    def _tree(self, release: str) -> Path:
        package = self._folder / release / "megatron" / "core"
        if not package.exists():
            package.mkdir(parents=True)
            major, minor = release.split(".")
            text = f"MAJOR = {major}\nMINOR = {minor}\nPATCH = 0\nPRE_RELEASE = ''\n"
            (package / "package_info.py").write_text(text)
        return self._folder / release

    def is_offered(self, row: Verdict) -> bool:
        """Tell whether the preset would set the levers of a row at once."""
        preset, text = self._preset(row)
        levers = {lever.label: lever for lever in preset.levers(text, row.point)}
        return row.levers <= levers.keys() and _go_together([levers[label] for label in row.levers])


def _go_together(levers: list[Lever]) -> bool:
    names = {lever.name for lever in levers}
    pairs = ((a, b) for a in levers for b in levers if a is not b)
    return all(lever.needs <= names for lever in levers) and all(goes_with(a, b) for a, b in pairs)


@pytest.mark.parametrize("release", RELEASES)
def test_the_preset_offers_exactly_what_megatron_accepts(release: str, tmp_path: Path) -> None:
    judged = Judged(tmp_path)
    assert [row for row in verdicts() if row.release == release and judged.is_offered(row) != row.accepted] == []


def test_every_lever_is_judged_in_the_first_and_the_last_release_that_takes_it() -> None:
    seen = {(row.release, label) for row in verdicts() if row.accepted for label in row.levers}
    minors = sorted({int(row.release.partition(".")[2]) for row in verdicts()})
    missing = []
    for lever in LEVERS:
        label = lever.name if lever.value is True else f"{lever.name}={lever.value}"
        taken = [f"0.{minor}" for minor in minors if lever.first <= (0, minor) <= lever.last]
        missing += [(release, label) for release in {taken[0], taken[-1]} if (release, label) not in seen]
    assert missing == []


def test_there_are_many_rows_of_both_kinds_for_every_release() -> None:
    counts = Counter((row.release, row.accepted) for row in verdicts())
    releases = {release for release, _ in counts}
    assert {f"0.{minor}" for minor in range(9, 21)} == releases
    assert all(counts[release, True] >= 30 and counts[release, False] >= 5 for release in releases)
