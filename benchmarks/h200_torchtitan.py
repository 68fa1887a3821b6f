"""What torchtitan's `--comm.mode fake_backend` says of a layout, beside real runs, on one GPU.

    python benchmarks/h200_torchtitan.py --output torchtitan.json
    python benchmarks/h200_torchtitan.py --study --output study.json --max-hours 0.05

Its own Qwen3 of 0.6B and 1.7B, with random text: as they train on the one GPU, then with fake communication as the
first of 1 and 8 ranks. A row has the median time of a step after the first ones, and the peak of memory by the log.
`--study` tunes the smaller one on the one GPU; further options go to `zenithtune optimize`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
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


def main() -> None:
    """Run every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--study", action="store_true")
    options, more = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp())
    write_data(folder, "<|endoftext|>", "<|im_end|>", 500)
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
