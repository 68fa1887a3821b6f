"""What torchtitan's `--comm.mode fake_backend` says of a layout, beside real runs, on one GPU.

    python benchmarks/h200_torchtitan.py --output torchtitan.json
    python benchmarks/h200_torchtitan.py --study --output study.json --max-hours 0.05
    python benchmarks/h200_torchtitan.py --sweep --output rows.csv --seconds 500

Its own Qwen3 of 0.6B and 1.7B, with random text: as they train on the one GPU, then with fake communication as the
first of 1 and 8 ranks. A row has the median time of a step after the first ones, and the peak of memory by the log.
`--study` tunes the smaller one on the one GPU; further options go to `zenithtune optimize`. `--sweep` measures many
widths, micro-batches and recomputations, compiled or not, in one process, as rows in the form of measured runs. A few
are of single ranks of layouts on 8 GPUs, with fake communication (`probed_stage`). They come in a fixed random order,
so that a sweep cut short covers all kinds; the first steps of each are left out.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from h200_study import study

TOML = """
[model]
name = "qwen3"
flavor = "{flavor}"
hf_assets_path = "{folder}/tokenizer"
[training]
dataset = "c4_test"
dataset_path = "{folder}/data"
local_batch_size = 4
seq_len = 2048
steps = 12
[activation_checkpoint]
mode = "{recompute}"
[metrics]
log_freq = 1
"""
LINE = re.compile(r"step:\s*(\d+).*?memory:\s*([\d.]+)GiB.*?tps:\s*([\d,]+)")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TOKENS = 4 * 2048


def write_data(folder: Path, begin: str, end: str, num_texts: int) -> None:
    """Write a tokenizer of single bytes, with names for where a text begins and ends, and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = [begin, end, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(letters[:2])
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    names = {"bos_token": begin, "eos_token": end}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "data").mkdir()
    (folder / "data" / "data.json").write_text(f"{json.dumps({'text': 'one two three ' * 200})}\n" * num_texts)


def run(folder: Path, flavor: str, recompute: str, world: int, tp: int = 1, is_fake: bool = False) -> dict[str, Any]:
    """Train a few steps; with a fake backend as the first of `world` ranks."""
    config = folder / "job.toml"
    config.write_text(TOML.format(folder=folder, flavor=flavor, recompute=recompute))
    more = ["--parallelism.tensor_parallel_degree", str(tp), *(("--comm.mode", "fake_backend") if is_fake else ())]
    ranks = {"WORLD_SIZE": world, "NGPU": world, "RANK": 0, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1"}
    env = {**os.environ, **{name: str(value) for name, value in ranks.items()}, "MASTER_PORT": "29511"}
    begin = time.monotonic()
    words = [sys.executable, "-W", "ignore", "-m", "torchtitan.train", "--job.config_file", str(config), *more]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=200)
    text = COLOURS.sub("", done.stdout + done.stderr)
    found = [(float(memory), float(tokens.replace(",", ""))) for _, memory, tokens in LINE.findall(text)]
    row = {"flavor": flavor, "recompute": recompute, "world": world, "tp": tp, "is_fake": is_fake}
    if len(found) < 5:
        return {**row, "returncode": done.returncode, "error": text[-1500:]}
    times = [TOKENS / tokens / tp for _, tokens in found[3:]]  # its tokens are those of one GPU
    peak = max(memory for memory, _ in found)
    seconds = round(time.monotonic() - begin, 1)
    return {**row, "step_s": statistics.median(times), "steps_s": times, "peak_gib": peak, "seconds": seconds}


NUM_WARM_UP, NUM_STEPS = 2, 5
SHAPES = {
    "llama-16x512": (512, 16, 8, 4, 2048, 32000),
    "llama-16x1024": (1024, 16, 16, 4, 4096, 32000),
    "llama-12x2048": (2048, 12, 16, 4, 8192, 32000),
    "llama-8x3072": (3072, 8, 24, 8, 8192, 32000),
    "llama-6x4096": (4096, 6, 32, 8, 14336, 128256),
    "llama-2x64": (64, 2, 4, 2, 256, 512),
}
"""Width, layers, heads, heads of keys and values, width of the feed-forward part, and vocabulary."""
QWENS = ("0.6B", "1.7B")
FIELDS = (
    *("source_id", "year", "framework", "gpu", "gpu_mem_gib", "n_gpus", "model", "num_layers", "hidden", "ffn_hidden"),
    *("num_heads", "num_kv_heads", "vocab", "seq_len", "precision", "tp", "mbs", "gbs", "zero_stage_or_fsdp"),
    *("seq_parallel", "recompute", "compile", "attention", "optimizer", "probed_stage", "step_time_s"),
    *("steps_s", "max_allocated_mib", "max_reserved_mib", "outcome", "notes", "wall_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of the sweep."""

    model: str
    mbs: int = 1
    num_micro_batches: int = 2
    seq_len: int = 2048
    recompute: str = "none"
    is_compiled: bool = False
    num_gpus: int = 1
    tp: int = 1

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.mbs * self.num_micro_batches * self.num_gpus // self.tp

    def words(self, folder: Path) -> list[str]:
        """Return torchtitan's options."""
        family = "qwen3" if self.model in QWENS else "llama3"
        values = {
            "model.name": family,
            "model.flavor": self.model,
            "model.hf_assets_path": folder / "tokenizer",
            "training.dataset": "c4_test",
            "training.dataset_path": folder / "data",
            "training.local_batch_size": self.mbs,
            "training.global_batch_size": self.batch,
            "training.seq_len": self.seq_len,
            "training.steps": 1000,
            "activation_checkpoint.mode": self.recompute,
            "activation_checkpoint.selective_ac_option": "op",
            "parallelism.tensor_parallel_degree": self.tp,
            # The log of a step ends the count of its peak of memory.
            "metrics.log_freq": 1000,
        }
        words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
        words += ["--comm.mode", "fake_backend"] if self.num_gpus > 1 else []
        return [*words, *(("--compile.enable",) if self.is_compiled else ())]


def points() -> Iterator[Point]:
    """Yield the runs of the sweep, in no order."""
    for model in (*list(SHAPES)[:-1], *QWENS):
        for mbs in (1, 2, 4, 8):
            yield Point(model=model, mbs=mbs)
        for mbs, recompute in ((1, "selective"), (4, "selective"), (1, "full"), (4, "full"), (8, "full")):
            yield Point(model=model, mbs=mbs, recompute=recompute)
    for model in ("llama-16x512", "llama-12x2048", "0.6B"):
        yield Point(model=model, num_micro_batches=8)
    for model in ("llama-12x2048", "llama-6x4096"):
        yield Point(model=model, seq_len=8192)
    for model in ("llama-16x1024", "llama-12x2048", "llama-6x4096"):
        yield Point(model=model, mbs=1, is_compiled=True)
        yield Point(model=model, mbs=4, is_compiled=True)
    for recompute in ("selective", "full"):
        yield Point(model="llama-12x2048", mbs=4, recompute=recompute, is_compiled=True)


def ranks() -> Iterator[Point]:
    """Yield layouts on 8 GPUs whose first rank runs alone."""
    for model in ("llama-16x1024", "llama-12x2048", "llama-6x4096"):
        yield Point(model=model, mbs=1, num_gpus=8)
        yield Point(model=model, mbs=4, num_gpus=8)
        yield Point(model=model, mbs=1, num_gpus=8, tp=2)
        yield Point(model=model, mbs=4, num_gpus=8, tp=4)
    yield Point(model="llama-12x2048", mbs=4, num_gpus=8, recompute="full")
    yield Point(model="llama-12x2048", mbs=1, num_gpus=8, tp=2, recompute="full")


def sweep(folder: Path, output: Path, seconds: float, is_tiny: bool) -> None:
    """Measure until all is done or the time is up, and write each row at once."""
    begin = time.monotonic()
    os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"})
    import torch
    import torchtitan.train  # noqa: F401
    from h200_landscapes import launch_us
    from torchtitan.models.llama3 import TransformerModelArgs, llama3_args

    for name, (hidden, layers, heads, kv_heads, ffn, vocab) in SHAPES.items():
        size = {"dim": hidden, "n_layers": layers, "n_heads": heads, "n_kv_heads": kv_heads, "vocab_size": vocab}
        llama3_args[name] = TransformerModelArgs(**size, multiple_of=ffn)  # its feed-forward part is rounded up to that
    is_gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if is_gpu else "cpu"
    about = {"date": time.strftime("%Y-%m-%d"), "device": name, "argv": sys.argv[1:], "steps": NUM_STEPS}
    about |= {each: version(each) for each in ("torch", "torchtitan")}
    about["launch_us"] = launch_us(torch.device("cuda" if is_gpu else "cpu"))
    tiny = Point(model="llama-2x64", seq_len=64)
    alone = [tiny, replace(tiny, recompute="selective")] if is_tiny else list(points())
    sharded = [replace(tiny, num_gpus=8, tp=tp) for tp in (1, 2)] if is_tiny else list(ranks())
    runs = [*random.Random(0).sample(sharded, len(sharded)), *random.Random(0).sample(alone, len(alone))]
    measure(tiny if is_tiny else Point(model="llama-12x2048"), folder)  # kernels are loaded and the clocks go up once
    about["ready_s"] = round(time.monotonic() - begin, 1)
    output.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for run in runs:
            if time.monotonic() - begin > seconds:
                break
            row = {**_common(about), **measure(run, folder)}
            writer.writerow(row)
            file.flush()
            print(run, row["outcome"], row["step_time_s"], row["wall_s"], flush=True)


def _common(about: dict[str, Any]) -> dict[str, Any]:
    """Return what is the same in each row."""
    return {
        "source_id": "h200_torchtitan",
        "year": about["date"][:4],
        "framework": f"torchtitan {about['torchtitan']}, torch {about['torch']}",
        "gpu": about["device"].rpartition(" ")[2],
        "gpu_mem_gib": "139.8",
        "attention": "sdpa",
        "optimizer": "fused",
    }


def measure(point: Point, folder: Path) -> dict[str, Any]:
    """Train a few steps in this process; whatever ends them is a row."""
    import torch

    start, steps_s, outcome = time.monotonic(), list[float](), "ok"
    shape, notes = _shape(point)
    try:
        _train(point, folder, steps_s)
    except torch.OutOfMemoryError:
        outcome = "oom"
    except Exception as error:
        outcome, notes = "error", [*notes, f"FLAG: {type(error).__name__}: {str(error)[:200]!r}"]
    is_gpu = torch.cuda.is_available()
    allocated, reserved = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if is_gpu else (0, 0)
    wall_s = time.monotonic() - start
    if point.is_compiled:
        torch.compiler.reset()
    gc.collect()
    if is_gpu:
        torch.cuda.empty_cache()
    steps = steps_s[NUM_WARM_UP:] if outcome == "ok" else []
    return {
        "model": f"qwen3-{point.model}" if point.model in QWENS else point.model,
        **shape,
        "n_gpus": point.num_gpus,
        "seq_len": point.seq_len,
        "precision": "bf16" if point.num_gpus > 1 else "bf16-autocast",
        "tp": point.tp,
        "mbs": point.mbs,
        "gbs": point.batch,
        "zero_stage_or_fsdp": "FSDP2" if point.num_gpus > 1 else "none",
        "seq_parallel": "yes" if point.tp > 1 else "no",
        "probed_stage": 0 if point.num_gpus > 1 else "",
        "recompute": point.recompute,
        "compile": int(point.is_compiled),
        "step_time_s": f"{statistics.median(steps):.5f}" if steps else "",
        "steps_s": " ".join(f"{step:.5f}" for step in steps_s),
        "max_allocated_mib": round(allocated / 2**20, 1),
        "max_reserved_mib": round(reserved / 2**20, 1),
        "outcome": outcome,
        "notes": "; ".join(notes),
        "wall_s": round(wall_s, 2),
    }


def _shape(point: Point) -> tuple[dict[str, int], list[str]]:
    """Return the columns of the model, and what notes say of it."""
    from torchtitan.models.llama3 import llama3_args
    from torchtitan.models.qwen3 import qwen3_args

    names = {"num_layers": "n_layers", "hidden": "dim", "num_heads": "n_heads", "num_kv_heads": "n_kv_heads"}
    if point.model in QWENS:
        args, names["ffn_hidden"] = qwen3_args[point.model], "hidden_dim"
        notes = ["tied-embeddings" if args.enable_weight_tying else "untied", "qk-norm", f"head_dim={args.head_dim}"]
    else:
        args, names["ffn_hidden"], notes = llama3_args[point.model], "multiple_of", ["untied"]
    return {column: getattr(args, name) for column, name in (names | {"vocab": "vocab_size"}).items()}, notes


def _train(point: Point, folder: Path, steps_s: list[float]) -> None:
    """Train a few steps, and add the seconds of each."""
    import torch
    from torchtitan.config import ConfigManager
    from torchtitan.train import Trainer

    if torch.distributed.is_initialized() and torch.distributed.get_world_size() != point.num_gpus:
        torch.distributed.destroy_process_group()
    os.environ.update({"WORLD_SIZE": str(point.num_gpus), "NGPU": str(point.num_gpus)})
    trainer = Trainer(ConfigManager().parse_args(point.words(folder)))
    try:
        batches = trainer.batch_generator(trainer.dataloader)
        for _ in range(NUM_WARM_UP + NUM_STEPS):
            begin = time.perf_counter()
            trainer.step += 1
            trainer.gc_handler.run(trainer.step)
            trainer.train_step(batches)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            steps_s.append(time.perf_counter() - begin)
    finally:
        trainer.close()


def main() -> None:
    """Run every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--study", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=500.0, help="start no run of a sweep after so many")
    parser.add_argument("--tiny", action="store_true", help="a sweep of a model of a few kilobytes, without a GPU")
    options, more = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp())
    write_data(folder, "<|endoftext|>", "<|im_end|>", 500)
    if options.sweep:
        sweep(folder, options.output, options.seconds, options.tiny)
        return
    machine = {name: version(name) for name in ("torch", "torchtitan")}
    result: dict[str, Any] = {"argv": sys.argv[1:], "machine": machine}
    if options.study:
        config = folder / "job.toml"
        config.write_text(TOML.format(folder=folder, flavor="0.6B", recompute="full"))
        launch = f"{sys.executable} -m torch.distributed.run --nproc-per-node 1 -m torchtitan.train"
        result |= study(f"{launch} --job.config_file {config}", more)
        print(json.dumps(result["summary"], indent=1))
    else:
        result["rows"] = rows = []
        for flavor, recompute in (("0.6B", "none"), ("1.7B", "full")):
            rows.append(run(folder, flavor, recompute, 1))
            rows += [run(folder, flavor, recompute, world, is_fake=True) for world in (1, 8)]
        rows.append(run(folder, "1.7B", "full", 8, 4, is_fake=True))
        for row in rows:
            print({name: value for name, value in row.items() if name != "steps_s"}, flush=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
