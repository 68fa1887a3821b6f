"""Whole landscapes of one GPU: every micro-batch, recomputation, attention and optimizer of three Llamas, measured.

    python benchmarks/h200_landscapes.py --output landscapes.csv --seconds 400
    python benchmarks/h200_landscapes.py --trainer --output loops.csv --seconds 240

Hugging Face's Llama in bf16 autocast with fp32 weights and AdamW, as its Trainer runs it. Every layout has the same
batch; the first step of each is left out as warm-up. Layouts come in a random order, so that what drifts falls on all.
`--trainer` compares the plain loop with the Trainer itself: on samples of one length, on padded ones of the same shape,
and on samples of many lengths. Rows have the columns of measured runs, so that calibrations can be fitted to them.
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
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

NUM_WARM_UP, NUM_STEPS = 1, 4
SOURCE_ID = "h200_landscapes"
AXES = {"recompute": ("none", "full"), "attention": ("eager", "sdpa"), "optimizer": ("foreach", "fused")}


LOOPS = ("plain", "trainer", "padded", "varied")
"""The loop of this file; the Trainer on samples of one length, on padded ones, on those of many lengths."""
NOTES = {"padded": "FLAG: padded samples", "varied": "FLAG: samples of many lengths, most of them new to the process"}
"""Why a row says nothing of a layout alone."""


@dataclass(frozen=True)
class Shape:
    """The model that is trained, and the sequences of a step."""

    model: str
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ffn_hidden: int
    vocab: int
    seq_len: int
    gbs: int

    def config(self, attention: str) -> LlamaConfig:
        """Return the model as transformers describes it."""
        return LlamaConfig(
            hidden_size=self.hidden, num_hidden_layers=self.num_layers, num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads, intermediate_size=self.ffn_hidden, vocab_size=self.vocab,
            max_position_embeddings=self.seq_len, tie_word_embeddings=False, use_cache=False,
            attn_implementation=attention, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip

    def layouts(self) -> list[dict[str, Any]]:
        """Return every point of the landscape."""
        sizes = [2**power for power in range(self.gbs.bit_length())]
        return [
            {"mbs": mbs, **dict(zip(AXES, values, strict=True)), "loop": LOOPS[0]}
            for mbs, values in itertools.product(sizes, itertools.product(*AXES.values()))
        ]

    def loops(self) -> list[dict[str, Any]]:
        """Return the smallest and the largest micro-batch with each loop."""
        return [
            {"mbs": mbs, "recompute": recompute, "attention": "sdpa", "optimizer": "fused", "loop": loop}
            for mbs, recompute, loop in itertools.product((1, self.gbs), AXES["recompute"], LOOPS)
        ]


SHAPES = (
    Shape("llama-24x1024", 1024, 24, 16, 4, 4096, 32000, 2048, 8),
    Shape("llama-16x2048", 2048, 16, 32, 8, 8192, 32000, 2048, 8),
    Shape("llama-20x3072", 3072, 20, 24, 8, 8192, 32000, 2048, 4),
)
TRAINER_SHAPES = (Shape("llama-8x2048", 2048, 8, 16, 4, 8192, 32000, 2048, 8), SHAPES[0])
FIELDS = (
    "source_id", "year", "framework", "gpu", "gpu_mem_gib", "n_gpus", *(field.name for field in fields(Shape)),
    "precision", "mbs", *AXES, "loop", "step_time_s", "steps_s", "max_allocated_mib", "max_reserved_mib", "outcome",
    "notes", "wall_s",
)  # fmt: skip
TINY = (Shape("llama-2x64", 64, 2, 4, 2, 128, 256, 32, 2),)


def main() -> None:
    """Measure until all is done or the time is up, and write each row at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--trainer", action="store_true", help="compare loops rather than measure whole landscapes")
    parser.add_argument("--tiny", action="store_true", help="a model of a few kilobytes, for a machine without a GPU")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    end = time.monotonic() + options.seconds
    about = {"startup_s": start_up(), "warm_up_steps": NUM_WARM_UP, "steps": NUM_STEPS, "argv": sys.argv[1:]}
    about |= {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__}
    about |= {
        "transformers": version("transformers"),
        "date": time.strftime("%Y-%m-%d"),
        "launch_us": launch_us(device),
    }
    options.output.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    shapes = TINY if options.tiny else TRAINER_SHAPES if options.trainer else SHAPES
    # Kernels are loaded and the clocks go up once.
    measure(shapes[0], shapes[0].layouts()[-1], device)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for shape in shapes:
            layouts = shape.loops() if options.trainer else shape.layouts()
            for layout in random.Random(0).sample(layouts, len(layouts)):
                if time.monotonic() > end:
                    return
                writer.writerow({**_common(about), **asdict(shape), **layout, **measure(shape, layout, device)})
                file.flush()


def _common(about: dict[str, Any]) -> dict[str, Any]:
    """Return what is the same in each row."""
    return {
        "source_id": SOURCE_ID,
        "year": about["date"][:4],
        "framework": f"transformers {about['transformers']}, torch {about['torch']}",
        "gpu": about["device"].rpartition(" ")[2],
        "gpu_mem_gib": "139.8",
        "n_gpus": 1,
        "precision": "bf16-autocast",
    }


def launch_us(device: torch.device) -> float:
    """Return how many microseconds the host takes to start a kernel that has next to nothing to do."""
    number = torch.ones(1, device=device)
    begin = time.perf_counter()
    for _ in range(2000):
        number.add_(1.0)
    return round((time.perf_counter() - begin) / 2000 * 1e6, 2)


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
        run = _steps if layout["loop"] == "plain" else _trainer_steps
        steps_s, outcome = run(shape, layout, device), "ok"
    except torch.cuda.OutOfMemoryError:
        steps_s, outcome = [], "oom"
    allocated, reserved = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if is_gpu else (0, 0)
    wall_s = time.monotonic() - start
    gc.collect()
    if is_gpu:
        torch.cuda.empty_cache()
    return {
        "step_time_s": f"{median(steps_s):.5f}" if steps_s else "",
        "steps_s": " ".join(f"{step:.5f}" for step in steps_s),
        "max_allocated_mib": round(allocated / 2**20, 1),
        "max_reserved_mib": round(reserved / 2**20, 1),
        "outcome": outcome,
        "notes": NOTES.get(layout["loop"], ""),
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
            tokens = torch.randint(0, shape.vocab, (mbs, shape.seq_len), device=device)
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


class _Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Random samples: of one length, of half of it but for the first of a micro-batch, or of many lengths."""

    def __init__(self, shape: Shape, layout: dict[str, Any]) -> None:
        self.vocab, length, loop = shape.vocab, shape.seq_len, layout["loop"]
        count = shape.gbs * (NUM_WARM_UP + NUM_STEPS)
        draw = torch.rand(count, generator=torch.Generator().manual_seed(0))
        varied = (length * (0.25 + 0.75 * draw)).int().tolist()
        padded = [length if index % layout["mbs"] == 0 else length // 2 for index in range(count)]
        self.lengths = {"trainer": [length] * count, "padded": padded, "varied": varied}[loop]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.randint(1, self.vocab, (self.lengths[index],))}


def _padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    tokens, pad = [sample["input_ids"] for sample in samples], torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(tokens, batch_first=True),
        "attention_mask": pad([torch.ones_like(each) for each in tokens], batch_first=True),
        "labels": pad(tokens, batch_first=True, padding_value=-100),
    }


class _Clock(TrainerCallback):  # type: ignore[misc]
    """Note when each update ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


class _InOrder(Trainer):  # type: ignore[misc]
    def _get_train_sampler(self, *_: Any) -> torch.utils.data.SequentialSampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def _trainer_steps(shape: Shape, layout: dict[str, Any], device: torch.device) -> list[float]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, bf16=True, learning_rate=1e-4, report_to="none", save_strategy="no", disable_tqdm=True,
            per_device_train_batch_size=layout["mbs"], gradient_accumulation_steps=shape.gbs // layout["mbs"],
            gradient_checkpointing=layout["recompute"] == "full", use_cpu=device.type == "cpu",
            max_steps=NUM_WARM_UP + NUM_STEPS,
        )  # fmt: skip
        clock = _Clock()
        with device:
            model = LlamaForCausalLM(shape.config(layout["attention"]))
        samples = _Samples(shape, layout)
        _InOrder(model=model, args=arguments, train_dataset=samples, data_collator=_padded, callbacks=[clock]).train()
    return [end - begin for begin, end in itertools.pairwise(clock.ends)]


if __name__ == "__main__":
    main()
