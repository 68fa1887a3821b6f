"""DeepSpeed itself and its levers: its own parser takes every configuration that is written, and two ranks train."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_deepspeed import CONFIG, CPU_ENV, optimize
from tests.requirements import need_module
from zenith_tune.presets.deepspeed.command import FILE_NAME
from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset
from zenith_tune.presets.levers import Lever, goes_with, names_on_request
from zenith_tune.presets.shared.zero_levers import LEVERS
from zenith_tune.study.parameters import Params

pytestmark = pytest.mark.usefixtures("deepspeed")

Tune = Callable[..., subprocess.CompletedProcess[str]]
NUM_JOBS = 60
PARSER = """
import json, sys
from deepspeed.runtime import config
config.dist.get_rank = lambda *a, **k: 0
for line in sys.stdin:
    ranks, values = json.loads(line)
    config.dist.get_world_size = lambda *a, **k: ranks
    try:
        read = config.DeepSpeedConfig(values).zero_config
        print("parsed:", json.dumps([read.overlap_comm, read.reduce_bucket_size, read.zero_hpz_partition_size]))
    except Exception as error:
        print("parsed:", json.dumps(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture(scope="module")
def deepspeed() -> None:
    for module in ("torch", "deepspeed"):
        need_module("engines", module)


def random_job(chance: random.Random, folder: Path) -> tuple[DeepSpeedPreset, str, int]:
    """Return a preset bound to a job of random stage, offload, precision, buckets and nodes."""
    stage, nodes = chance.choice((0, 1, 2, 3)), chance.choice((1, 2, 4))
    zero: dict[str, Any] = {"stage": stage}
    for name in ("overlap_comm", "contiguous_gradients", "reduce_scatter", "allgather_partitions"):
        zero |= {name: chance.choice((True, False))} if chance.random() < 0.4 else {}
    for name in ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"):
        zero |= {name: chance.choice((5e6, 2e8, 1_000_000_000))} if chance.random() < 0.3 else {}
    if stage and chance.random() < 0.5:
        zero["offload_optimizer"] = {"device": "cpu", **chance.choice(({}, {"pin_memory": False}))}
    if stage == 3 and chance.random() < 0.3:
        zero["offload_param"] = {"device": "cpu"}
    path = folder / "ds.json"
    precision = {"bf16": {"enabled": True}} if chance.random() < 0.6 else {}
    path.write_text(json.dumps({"train_batch_size": 64, **precision, "zero_optimization": zero}))
    command = f"deepspeed --num_nodes {nodes} --num_gpus 4 train.py --deepspeed_config {path}"
    known: dict[str, Any] = (
        {"model": "llama-3-8b", "seq": 2048, "cluster": f"h100x{4 * nodes}"} if chance.random() < 0.5 else {}
    )
    preset = DeepSpeedPreset(allow="+".join(names_on_request(LEVERS)), search="mbs", **known)
    preset.bind(command)
    return preset, command, 4 * nodes


def lever_sets(levers: list[Lever], chance: random.Random) -> Iterator[list[Lever]]:
    """Yield each lever with what it needs, and a random set of those that go together."""
    for lever in levers:
        yield [lever, *(other for other in levers if other.name in lever.needs)]
    chosen: list[Lever] = []
    for lever in chance.sample(levers, len(levers)):
        if all(goes_with(lever, other) for other in chosen):
            chosen.append(lever)
    yield chosen


@pytest.mark.slow
def test_deepspeeds_own_parser_takes_every_configuration_with_levers(tmp_path: Path) -> None:
    chance, lines = random.Random(19), []
    tried: set[str] = set()
    for _ in range(NUM_JOBS):
        preset, command, num_ranks = random_job(chance, tmp_path)
        own: Params = {name: each.grid(1)[0] for name, each in preset.get_search_space().items()}
        for levers in lever_sets(list(preset.levers(command, own)), chance):
            values = {lever.name: lever.value for lever in levers}
            tried |= values.keys()
            config = json.loads(preset.files({**own, **values})[FILE_NAME])
            assert config != json.loads(preset.files(own)[FILE_NAME]) or not levers
            lines.append(json.dumps([num_ranks, config]))
    assert tried == {lever.name for lever in LEVERS}, "each is among them"
    refused = {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    lines.append(json.dumps([4, {"train_batch_size": 64, "zero_optimization": refused}]))
    done = subprocess.run(
        [sys.executable, "-c", PARSER], input="\n".join(lines), capture_output=True, text=True, timeout=500,
        env={**CPU_ENV, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    verdicts = [json.loads(line.removeprefix("parsed: ")) for line in done.stdout.splitlines() if "parsed:" in line]
    assert len(verdicts) == len(lines) > 200, done.stderr[-2000:]
    assert isinstance(verdicts.pop(), str), "the ratio is for stage 3 alone"
    assert not [verdict for verdict in verdicts if isinstance(verdict, str)]


@pytest.mark.slow
def test_levers_are_tried_on_the_best_point_with_deepspeed_itself(zenithtune: Tune, tmp_path: Path) -> None:
    levers = ("contiguous_gradients", "stage3_prefetch_bucket_size")
    zero = {"stage": [3], "contiguous_gradients": False}
    config = {**CONFIG, "zero_optimization": zero, "train_micro_batch_size_per_gpu": 1}
    options = ("--args", f"search=mbs,levers={'+'.join(levers)}", "--no-baseline", "--no-confirm")
    done, study = optimize(zenithtune, tmp_path, config, *options, mbs_max=1, num_ranks=2)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    trials = [trial for trial in study["trials"] if trial["parameters"].keys() & {*levers}]
    # A rank of gloo's may abort when it ends, after its last step: then the halves are tried.
    ran = {name for trial in trials if trial["outcome"] == "ok" for name in trial["parameters"]}
    assert ran >= {*levers}, [trial["cause"] for trial in trials]
    assert trials[0]["parameters"].keys() >= {*levers}, "both are tried at once"
    # Which of them is faster on two CPU ranks is chance: either way the study ends with what it found.
    left = json.loads((tmp_path / "out" / "s" / "ds_config_optimal.json").read_text())["zero_optimization"]
    kept = {name: value for name, value in study["best"]["parameters"].items() if name in levers}
    named = {name: value for name, value in left.items() if name in (*levers, "contiguous_gradients")}
    assert named == {"contiguous_gradients": False, **kept}
    assert "levers: " in done.stdout
