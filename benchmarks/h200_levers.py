"""What each setting that users of Hugging Face's Trainer try is worth, one at a time, on one GPU.

    python benchmarks/h200_levers.py --output levers.json --seconds 300
    python benchmarks/h200_levers.py --tiny --output levers.json --only plain "4 data workers"

The job is a Llama of 0.6B parameters in bf16, in batches of 8 samples of up to 2048 tokens that are padded to the
longest. Every row trains a fresh model on the same samples in the same order, after others have met their lengths.
Most share one process; settings of torch.compile and of the environment have one each. The plain command is measured
again at the end: what it changed by is drift. Rates count the tokens of samples, without padding. Nothing starts after
--seconds, a process that runs on ends 60 s later, and the file is written after each row.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WARM_UP = 4
GRACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row: what is changed, and the row that it is compared with."""

    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of TrainingArguments."""
    against: str = "plain"
    attention: str = "sdpa"
    rows: str = "padded"
    """How a batch is made: padded to its longest sample, to a multiple (padded64), to all (fixed), or packed."""
    sample_s: float = 0.0
    """Seconds of the CPU that a sample takes to be made, as where it is tokenized."""
    foreach: bool | None = None
    bf16_weights: bool = False
    num_steps: int = 16
    warm_up: int = WARM_UP
    environment: dict[str, str] = field(default_factory=dict)
    process: str = ""
    """The process that it shares; empty for the one of most rows."""


def _worker_arguments(num: int, **more: Any) -> dict[str, Any]:
    return {"dataloader_num_workers": num, **more}


SLOW: dict[str, Any] = {"sample_s": 0.01, "against": "plain, 10 ms a sample"}
FP32 = {"bf16": False, "tf32": False}
REENTRANT, NOT_REENTRANT = ({"use_reentrant": flag} for flag in (True, False))
COMPILE: dict[str, Any] = {"warm_up": 12}
PLANS = {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
"""torch 2.9 and later prefer cuDNN's attention on Hopper, which makes a plan for each length."""
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SETTINGS = {
    "on a cold machine": Setting(),
    "plain": Setting(),
    "packed rows": Setting(rows="packed"),
    "plain, an epoch": Setting(num_steps=46),
    "grouped by length, an epoch": Setting(
        arguments={"train_sampling_strategy": "group_by_length"}, num_steps=46, against="plain, an epoch"
    ),
    "checkpointing, not reentrant": Setting(
        arguments={"gradient_checkpointing": True, "gradient_checkpointing_kwargs": NOT_REENTRANT}
    ),
    "checkpointing, reentrant": Setting(
        arguments={"gradient_checkpointing": True, "gradient_checkpointing_kwargs": REENTRANT}
    ),
    "checkpointing of every second layer": Setting(
        arguments={
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {**NOT_REENTRANT, "every_n_layers": 2},
        }
    ),
    "no filter of nan": Setting(arguments={"logging_nan_inf_filter": False}),
    "bf16 weights": Setting(bf16_weights=True),
    "plain in fp32": Setting(arguments=FP32, num_steps=6, warm_up=2),
    "tf32 in fp32": Setting(arguments={**FP32, "tf32": True}, num_steps=6, warm_up=2, against="plain in fp32"),
    "rows of one length": Setting(rows="fixed"),
    "plain, again": Setting(),
    "adamw_torch (foreach)": Setting(arguments={"optim": "adamw_torch"}),
    "adamw_torch, a kernel for each tensor": Setting(foreach=False),
    "attention: eager": Setting(attention="eager"),
    "attention: flex": Setting(attention="flex_attention", warm_up=8),
    "attention: flash 2": Setting(attention="flash_attention_2"),
    "attention: flash 3": Setting(attention="flash_attention_3"),
    "liger kernel": Setting(arguments={"use_liger_kernel": True}),
    "no pinned memory": Setting(arguments={"dataloader_pin_memory": False}),
    "4 data workers": Setting(arguments=_worker_arguments(4)),
    "plain, 10 ms a sample": Setting(sample_s=0.01),
    "1 data worker, 10 ms a sample": Setting(arguments=_worker_arguments(1), **SLOW),
    "4 data workers, 10 ms a sample": Setting(arguments=_worker_arguments(4), **SLOW),
    "4 data workers, prefetch 4, 10 ms a sample": Setting(
        arguments=_worker_arguments(4, dataloader_prefetch_factor=4, dataloader_persistent_workers=True), **SLOW
    ),
    "4 data workers, no pinned memory, 10 ms a sample": Setting(
        arguments=_worker_arguments(4, dataloader_pin_memory=False), **SLOW
    ),
    "rows padded to a multiple of 8": Setting(rows="padded8"),
    "rows padded to a multiple of 64": Setting(rows="padded64"),
    "expandable segments": Setting(environment=EXPANDABLE, process="expandable"),
    "no cuDNN attention, on a cold machine": Setting(environment=PLANS, process="plans", against="on a cold machine"),
    "no cuDNN attention": Setting(environment=PLANS, process="plans"),
    "1 thread a rank": Setting(environment={"OMP_NUM_THREADS": "1"}, process="threads"),
    "1 thread a rank, 10 ms a sample": Setting(environment={"OMP_NUM_THREADS": "1"}, process="threads", **SLOW),
    "compiled": Setting(arguments={"torch_compile": True}, process="compiled", **COMPILE),
    "compiled, rows of one length": Setting(
        arguments={"torch_compile": True}, rows="fixed", against="rows of one length", process="compiled", **COMPILE
    ),
    "compiled, reduce-overhead, rows of one length": Setting(
        arguments={"torch_compile": True, "torch_compile_mode": "reduce-overhead"},
        rows="fixed",
        against="rows of one length",
        process="reduce-overhead",
        **COMPILE,
    ),
    "compiled, max-autotune-no-cudagraphs, rows of one length": Setting(
        arguments={"torch_compile": True, "torch_compile_mode": "max-autotune-no-cudagraphs"},
        rows="fixed",
        against="rows of one length",
        process="max-autotune",
        **COMPILE,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The model and its samples."""

    hidden: int = 2048
    layers: int = 8
    vocab: int = 32000
    length: int = 2048
    batch: int = 8

    @property
    def num_samples(self) -> int:
        """Samples of an epoch of 50 steps."""
        return 50 * self.batch


TINY = Job(hidden=32, layers=2, vocab=64, length=32, batch=2)


def main() -> None:
    """Run the rows, a process after the other, and write each as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="start nothing after this")
    parser.add_argument("--only", choices=SETTINGS, nargs="*", default=list(SETTINGS))
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, to try the script")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if options.process is not None:
        if options.process in ("expandable", "threads"):
            measured(SETTINGS["plain"], options.tiny)  # its lengths are new to the process, as to none of the others
        for name in options.only:
            if time.monotonic() < end:
                print(json.dumps({"setting": name, **measured(SETTINGS[name], options.tiny)}), flush=True)
        return
    rows: list[Row] = []
    for process in dict.fromkeys(SETTINGS[name].process for name in options.only):
        names = [name for name in options.only if SETTINGS[name].process == process]
        if (left_s := end - time.monotonic()) > 0:
            run(process, names, left_s, options, rows)


def run(process: str, names: list[str], left_s: float, options: argparse.Namespace, rows: list[Row]) -> None:
    """Run the rows of a process, and write the file after each."""
    more = ["--tiny"] if options.tiny else []
    given = ["--output", str(options.output), "--seconds", str(left_s), "--process", process, "--only", *names]
    start = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, __file__, *more, *given],
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", **SETTINGS[names[0]].environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    killer = threading.Timer(left_s + GRACE_S, job.kill)
    killer.daemon = True
    killer.start()
    for line in job.stdout:
        if line.startswith('{"setting"'):
            rows.append(json.loads(line))
            print(as_text(rows[-1], rows), flush=True)
            write(rows, options)
    killer.cancel()
    missing = [name for name in names if name not in {row["setting"] for row in rows}]
    print(f"process {process or 'of most rows'}: {time.monotonic() - start:.0f} s, exit code {job.wait()}", flush=True)
    rows.extend({"setting": name, "failed": f"no row came: exit code {job.returncode}"} for name in missing)
    write(rows, options)


def write(rows: list[Row], options: argparse.Namespace) -> None:
    """Write all rows so far, each with its gain over the row that it is compared with."""
    from h200_guided import machine

    compared = [{**row, **gain(row, rows)} for row in rows]
    packages = {name: version(name) for name in ("transformers", "accelerate")}
    job = asdict(TINY if options.tiny else Job())
    found = {"job": job, "rows": compared, "machine": {**machine(), **packages}, "argv": sys.argv[1:]}
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def gain(row: Row, rows: list[Row]) -> Row:
    """Return what a row gains over the one that it is compared with."""
    against = SETTINGS[row["setting"]].against
    base = next((each for each in rows if each["setting"] == against and "failed" not in each), None)
    if base is None or "failed" in row:
        return {"against": against}
    return {
        "against": against,
        "speedup": row["tokens_per_s"] / base["tokens_per_s"],
        "memory": row["peak_bytes"] / base["peak_bytes"] - 1 if base["peak_bytes"] else None,
    }


def as_text(row: Row, rows: list[Row]) -> str:
    """Say in one line what a row found."""
    if "failed" in row:
        return f"{row['setting']}: failed: {row['failed']}"
    compared = gain(row, rows)
    better = f" ({compared['speedup']:.3f}x {compared['against']})" if "speedup" in compared else ""
    return (
        f"{row['setting']}: {1000 * row['step_s']:.1f} ms a step, {row['tokens_per_s']:.0f} tokens/s{better}, "
        f"spread {row['spread']:.1%}, padding {row['padding']:.0%}, peak {row['peak_bytes'] / 2**30:.2f} GiB of "
        f"{row['reserved_bytes'] / 2**30:.2f} reserved, first steps {row['first_s']:.1f} s"
    )


def measured(setting: Setting, is_tiny: bool) -> Row:
    """Return the row of a setting; what failed it, where something did."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return trained(setting, TINY if is_tiny else Job(), folder, is_tiny)
    except Exception as error:  # a package that is missing, a kernel that does not go with the job, no memory
        return {"failed": f"{type(error).__name__}: {error}"[:600]}


def trained(setting: Setting, job: Job, folder: str, is_tiny: bool) -> Row:
    """Train with a setting and return its row."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    is_gpu = torch.cuda.is_available() and not is_tiny
    torch.manual_seed(0)
    gc.collect()
    torch._dynamo.reset()
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ends: list[Any] = []
    tokens: list[Any] = []

    class Watched(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            tokens.append((inputs["labels"].ne(-100).sum(), inputs["labels"].numel()))
            return super().training_step(model, inputs, *args, **kwargs)

    class StepEnds(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if not is_gpu:
                ends.append(time.perf_counter())
                return
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()

    num_steps = setting.warm_up + setting.num_steps
    base = {"bf16": True, "per_device_train_batch_size": job.batch, "max_steps": num_steps, "output_dir": folder}
    quiet = {
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": not is_gpu,
        "logging_steps": 5,
    }
    start = time.monotonic()
    model: Any = made_model(job, setting, is_gpu)
    own = {} if setting.foreach is None else {"optimizer_cls_and_kwargs": (torch.optim.AdamW, plain_adamw(setting))}
    trainer = Watched(
        model=model,
        args=TrainingArguments(**{**base, **quiet, **setting.arguments}),
        train_dataset=samples(job, setting),
        data_collator=Collator(job, setting.rows),
        callbacks=[StepEnds()],
        **own,
    )
    trainer.train()
    if is_gpu:
        torch.cuda.synchronize()
    seconds = [before.elapsed_time(after) / 1000 if is_gpu else after - before for before, after in pairwise(ends)]
    wall_s = time.monotonic() - start
    steady, counted = seconds[setting.warm_up - 1 :], tokens[setting.warm_up :]
    num_tokens = sum(int(own) for own, _ in counted)
    halves = [statistics.fmean(steady[part::2]) for part in (0, 1)]
    return {
        "step_s": statistics.fmean(steady),
        "tokens_per_s": num_tokens / sum(steady),
        "padding": 1 - num_tokens / sum(every for _, every in counted),
        "num_steps": len(steady),
        "steps_s": steady,
        "spread": max(halves) / min(halves) - 1,
        "first_s": wall_s - sum(steady),
        "peak_bytes": torch.cuda.max_memory_allocated() if is_gpu else 0,
        "reserved_bytes": torch.cuda.max_memory_reserved() if is_gpu else 0,
        "arguments": setting.arguments,
    }


def plain_adamw(setting: Setting) -> dict[str, Any]:
    """Return what torch's AdamW is made with."""
    return {"lr": 5e-5, "foreach": setting.foreach, "fused": False}


def made_model(job: Job, setting: Setting, is_gpu: bool) -> Any:
    """Return a Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=job.hidden,
        intermediate_size=4 * job.hidden,
        num_hidden_layers=job.layers,
        num_attention_heads=max(job.hidden // 128, 2),
        num_key_value_heads=max(job.hidden // 512, 1),
        vocab_size=job.vocab,
        max_position_embeddings=job.length,
        attn_implementation=setting.attention,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("cuda" if is_gpu else "cpu"):
        model = LlamaForCausalLM(config)
    return model.bfloat16() if setting.bf16_weights else model


class Samples:
    """Random tokens; most samples are a quarter to three quarters as long as the longest."""

    def __init__(self, job: Job, sample_s: float, is_packed: bool) -> None:
        import torch

        self.vocab, self.sample_s = job.vocab, sample_s
        draw = torch.randn(job.num_samples, generator=torch.Generator().manual_seed(0))
        lengths = ((0.5 + 0.25 * draw) * job.length).clamp(8, job.length).int().tolist()
        self.lengths = [job.length] * (sum(lengths) // job.length) if is_packed else lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        end = time.perf_counter() + self.sample_s
        random = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, self.vocab, (self.lengths[index],), generator=random)
        while time.perf_counter() < end:
            pass
        return {"input_ids": tokens}


def samples(job: Job, setting: Setting) -> Samples:
    """Return the samples of a row."""
    return Samples(job, setting.sample_s, setting.rows == "packed")


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes a batch of samples."""

    job: Job
    rows: str

    def __call__(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        tokens = [sample["input_ids"] for sample in batch]
        multiple = int(self.rows.removeprefix("padded") or 1) if self.rows.startswith("padded") else 1
        longest = self.job.length if self.rows == "fixed" else max(len(each) for each in tokens)
        longest = -(-longest // multiple) * multiple

        def padded(rows: list[Any], value: int) -> Any:
            return torch.stack([torch.nn.functional.pad(row, (0, longest - len(row)), value=value) for row in rows])

        return {
            "input_ids": padded(tokens, 0),
            "attention_mask": padded([torch.ones_like(row) for row in tokens], 0),
            "labels": padded(tokens, -100),
        }


if __name__ == "__main__":
    main()
