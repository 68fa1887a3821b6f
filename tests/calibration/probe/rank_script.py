"""A pretrain_gpt.py for probes: it trains nothing, and ends as the variables STANDIN or STANDIN_<rank> say."""

from __future__ import annotations

import sys
from pathlib import Path

TEXT = """
import json, os, subprocess, sys, time

rank = os.environ["RANK"]
with open(os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[0], "hooks.json")) as hooks:
    record = json.load(hooks)["probe"]["record"]
how = os.environ.get("STANDIN_" + rank, os.environ.get("STANDIN", "hook"))
gpu = os.environ.get("STANDIN_GPU", "Fake H200")
step_s = float(os.environ.get("STANDIN_STEP_S", "0.05"))
assert "--fake-process-group" in sys.argv and int(os.environ["WORLD_SIZE"]) >= 1
with open("ranks.txt", "a") as ranks:
    ranks.write(rank + " " + os.environ["WORLD_SIZE"] + " " + str(os.getpid()) + "\\n")

if how == "oom":
    print("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
          "of 139.72 GiB of which 1.10 GiB is free.", file=sys.stderr)
    sys.exit(1)
if how == "brackets":
    print("Traceback (most recent call last):\\nValueError: [/broken] tag :100: in [red]config")
    sys.exit(1)
if how == "nothing":
    print("nothing to train")
    sys.exit(0)
if how == "hang":
    time.sleep(1000)
if how == "secret":
    print("token is", os.environ["HF_TOKEN"])

subprocess.Popen(["sleep", "1000"], start_new_session=True)
for step in range(1, int(os.environ.get("STANDIN_STEPS", "1000")) + 1):
    time.sleep(step_s)
    if how in ("hook", "secret"):
        memory = {"allocated": 10 * 2**30 - int(rank), "reserved": 11 * 2**30, "device": 12 * 2**30, "gpu": gpu}
        with open(record, "a") as file:
            file.write(json.dumps({"optimizer": 7, "seconds": time.monotonic(), **memory}) + "\\n")
    else:
        print(f" iteration {step:8d}/    1000 | consumed samples: {step:12d} | "
              f"elapsed time per iteration (ms): {1000 * step_s:.1f} | loss scale: 1.0 |", flush=True)
"""
SHAPE = (
    "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 32000 --tokenizer-type NullTokenizer --bf16 --mock-data "
    "--use-distributed-optimizer --micro-batch-size 1 --global-batch-size 32 --train-iters 100"
)


def write_script(folder: Path) -> Path:
    """Write the script into a folder."""
    path = folder / "pretrain_gpt.py"
    path.write_text(TEXT)
    return path


def training(*options: str, **variables: str) -> list[str]:
    """Return the words of a command that trains on eight GPUs."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8"]
    words = [f"{name}={value}" for name, value in variables.items()]
    return [*words, *launcher, "pretrain_gpt.py", *SHAPE.split(), *options]


def started(folder: Path) -> list[tuple[int, int, int]]:
    """Return rank, world and process of every rank that was run in a folder."""
    path = folder / "ranks.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(rank), int(world), int(pid)) for rank, world, pid in (line.split() for line in lines)]
