"""Whole landscapes of one GPU: every micro-batch, recomputation, attention and optimizer of three Llamas, measured.

    python benchmarks/h200_landscapes.py --output landscapes.csv --seconds 400

Hugging Face's Llama in bf16 autocast with fp32 weights and AdamW, as its Trainer runs it. Every layout has the same
batch; the first step of each is left out as warm-up. Layouts come in a random order, so that what drifts falls on all.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

NUM_WARM_UP, NUM_STEPS = 1, 4
AXES = {"recompute": ("none", "full"), "attention": ("eager", "sdpa"), "optimizer": ("foreach", "fused")}


@dataclass(frozen=True)
class Shape:
    """Hold what is trained, and by how many sequences in a step."""

    model: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    gbs: int

    def config(self, attention: str) -> LlamaConfig:
        """Return the model as transformers describes it."""
        return LlamaConfig(
            hidden_size=self.hidden, num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads, intermediate_size=self.ffn, vocab_size=self.vocab,
            max_position_embeddings=self.seq, tie_word_embeddings=False, use_cache=False,
            attn_implementation=attention,
        )  # fmt: skip

    def layouts(self) -> list[dict[str, Any]]:
        """Return every point of the landscape."""
        sizes = [2**power for power in range(self.gbs.bit_length())]
        return [
            {"mbs": mbs, **dict(zip(AXES, values, strict=True))}
            for mbs, values in itertools.product(sizes, itertools.product(*AXES.values()))
        ]


SHAPES = (
    Shape("llama-24x1024", 1024, 24, 16, 4, 4096, 32000, 2048, 8),
    Shape("llama-16x2048", 2048, 16, 32, 8, 8192, 32000, 2048, 8),
    Shape("llama-20x3072", 3072, 20, 24, 8, 8192, 32000, 2048, 4),
)
FIELDS = (
    *(field.name for field in fields(Shape)), "mbs", *AXES,
    "steps_s", "peak_allocated_mib", "peak_reserved_mib", "outcome", "wall_s",
)  # fmt: skip
TINY = (Shape("llama-2x64", 64, 2, 4, 2, 128, 256, 32, 2),)


def main() -> None:
    """Measure until all is done or the time is up, and write each row at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--tiny", action="store_true", help="a model of a few kilobytes, for a machine without a GPU")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    end = time.monotonic() + options.seconds
    about = {"startup_s": start_up(), "warm_up_steps": NUM_WARM_UP, "steps": NUM_STEPS, "argv": sys.argv[1:]}
    about |= {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__}
    about |= {"transformers": version("transformers"), "date": time.strftime("%Y-%m-%d")}
    options.output.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    shapes = TINY if options.tiny else SHAPES
    # Kernels are loaded and the clocks go up once.
    measure(shapes[0], shapes[0].layouts()[-1], device)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for shape in shapes:
            for layout in random.Random(0).sample(shape.layouts(), len(shape.layouts())):
                if time.monotonic() > end:
                    return
                writer.writerow({**asdict(shape), **layout, **measure(shape, layout, device)})
                file.flush()


def start_up() -> float:
    """Return how long a process takes until it could train: what a trial costs besides its steps."""
    start = time.monotonic()
    code = "import torch, transformers\nfrom transformers import Trainer\ntorch.zeros(1).cuda()"
    subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL)
    return round(time.monotonic() - start, 1)


def measure(shape: Shape, layout: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the steps and the memory of one layout, or that it ran out of memory."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.monotonic()
    try:
        steps_s, outcome = _steps(shape, layout, device), "ok"
    except torch.cuda.OutOfMemoryError:
        steps_s, outcome = [], "oom"
    allocated, reserved = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if is_gpu else (0, 0)
    wall_s = time.monotonic() - start
    gc.collect()
    if is_gpu:
        torch.cuda.empty_cache()
    return {
        "steps_s": " ".join(f"{step:.5f}" for step in steps_s),
        "peak_allocated_mib": round(allocated / 2**20, 1),
        "peak_reserved_mib": round(reserved / 2**20, 1),
        "outcome": outcome,
        "wall_s": round(wall_s, 2),
    }


def _steps(shape: Shape, layout: dict[str, Any], device: torch.device) -> list[float]:
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(shape.config(layout["attention"])).train()
    if layout["recompute"] == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{layout["optimizer"]: True})
    mbs, num = layout["mbs"], shape.gbs // layout["mbs"]
    found = []
    for _ in range(NUM_WARM_UP + NUM_STEPS):
        begin = time.perf_counter()
        for _ in range(num):
            tokens = torch.randint(0, shape.vocab, (mbs, shape.seq), device=device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens).loss / num
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found[NUM_WARM_UP:]


if __name__ == "__main__":
    main()
