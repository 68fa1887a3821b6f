"""Step time and memory of many shapes with real Megatron-LM on one GPU: where the host rules, and where it does not.

    python benchmarks/h200_sweep.py --tree Megatron-LM --output sweep.csv [--seconds 560] [--only moe] [--skip rows.csv]

Megatron-LM is imported once; every run is a fork of that process, which trains for a few steps with its own options.
Megatron-LM without Transformer Engine needs its tree on PYTHONPATH and CUDA_DEVICE_MAX_CONNECTIONS=1. The rows are in
the form of measured runs (docs/calibration.md); `probed_stage` marks single ranks of a layout on more GPUs, which run
alone in a fake process group. Runs are in a fixed random order, so that a sweep cut short covers all kinds.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import runpy
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from h200_guided import PLAIN

FRAMEWORK = "Megatron-LM main 2026-08-22, transformer-impl local, unfused attention, torch 2.11"
STEPS, WARM_UP = 7, 3
COLUMNS = (
    *("source_id", "framework", "gpu", "gpu_mem_gib", "n_gpus", "model", "num_layers", "hidden", "ffn_hidden"),
    *("num_heads", "num_kv_heads", "vocab", "seq_len", "n_experts", "top_k", "precision", "attention", "seq_parallel"),
    *("tp", "pp", "cp", "ep", "etp", "dp", "mbs", "gbs", "recompute_granularity", "recompute_method"),
    *("recompute_num_layers", "distributed_optimizer", "step_time_s", "max_allocated_mib", "max_reserved_mib"),
    *("outcome", "probed_stage", "notes", "steps_s", "trial_wall_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the sweep."""

    kind: str
    hidden: int
    num_layers: int
    ffn: int
    mbs: int = 1
    num_micro_batches: int = 8
    seq_len: int = 2048
    vocab: int = 32000
    recompute: str = "none"
    experts: int = 0
    top_k: int = 2
    tp: int = 1
    pp: int = 1
    ep: int = 1
    num_gpus: int = 1
    more: tuple[str, ...] = field(default=())

    @property
    def heads(self) -> int:
        """Heads of 128, of 64 in the thinnest models."""
        return self.hidden // (64 if self.hidden < 2048 else 128)

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.num_gpus // (self.tp * self.pp)

    @property
    def name(self) -> str:
        """A name for the model."""
        return f"llama-{self.num_layers}x{self.hidden}" + (f"-{self.experts}e" if self.experts else "")

    def options(self) -> list[str]:
        """Return the options of Megatron-LM."""
        batch = self.mbs * self.num_micro_batches * self.dp
        text = (
            f"{PLAIN} --num-layers {self.num_layers} --hidden-size {self.hidden} --ffn-hidden-size {self.ffn} "
            f"--num-attention-heads {self.heads} --group-query-attention --num-query-groups {max(self.heads // 4, 4)} "
            f"--seq-length {self.seq_len} --max-position-embeddings {self.seq_len} --swiglu --disable-bias-linear "
            "--normalization RMSNorm --position-embedding-type rope --untie-embeddings-and-output-weights "
            "--attention-dropout 0 --hidden-dropout 0 --log-throughput --log-interval 1 --eval-iters 0 "
            f"--eval-interval 1000 --lr 1e-4 --train-iters {STEPS} --micro-batch-size {self.mbs} "
            f"--global-batch-size {batch} --tensor-model-parallel-size {self.tp} "
            f"--pipeline-model-parallel-size {self.pp}"
        ).replace("--vocab-size 128256", f"--vocab-size {self.vocab}")
        words = text.split()
        if self.recompute == "full":
            words += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
        elif self.recompute == "selective":
            words += ["--recompute-granularity", "selective"]
        if self.experts:
            words += f"--num-experts {self.experts} --moe-router-topk {self.top_k} --moe-ffn-hidden-size".split()
            words += [str(self.ffn), *["--moe-router-load-balancing-type", "aux_loss"]]
            words += f"--expert-model-parallel-size {self.ep} --expert-tensor-parallel-size 1".split()
            words += ["--moe-token-dispatcher-type", "alltoall", "--moe-router-force-load-balancing"]
        if self.num_gpus > 1:
            words += ["--fake-process-group", "--use-distributed-optimizer"]
        return [*words, *self.more]

    def row(self, measured: dict[str, Any], wall_s: float) -> dict[str, Any]:
        """Return the run in the form of measured runs."""
        steps = measured.get("steps_s", [])[WARM_UP:]
        full = self.recompute == "full"
        return {
            "source_id": "h200_sweep",
            "framework": FRAMEWORK,
            "gpu": "H200",
            "gpu_mem_gib": 139.8,
            "n_gpus": self.num_gpus,
            "model": self.name,
            "num_layers": self.num_layers,
            "hidden": self.hidden,
            "ffn_hidden": self.ffn,
            "num_heads": self.heads,
            "num_kv_heads": max(self.heads // 4, 4),
            "vocab": self.vocab,
            "seq_len": self.seq_len,
            "n_experts": self.experts or "",
            "top_k": self.top_k if self.experts else "",
            "precision": "bf16",
            "attention": "unfused",
            "seq_parallel": "no",
            "tp": self.tp,
            "pp": self.pp,
            "cp": 1,
            "ep": self.ep,
            "etp": 1,
            "dp": self.dp,
            "mbs": self.mbs,
            "gbs": self.mbs * self.num_micro_batches * self.dp,
            "recompute_granularity": self.recompute,
            "recompute_method": "uniform" if full else "",
            "recompute_num_layers": 1 if full else "",
            "distributed_optimizer": int(self.num_gpus > 1),
            "step_time_s": round(statistics.median(steps), 5) if steps else "",
            "max_allocated_mib": measured.get("allocated_mib", ""),
            "max_reserved_mib": measured.get("reserved_mib", ""),
            "outcome": "ok" if steps else measured.get("outcome", "error"),
            "probed_stage": 0 if self.num_gpus > 1 else "",
            "notes": "; ".join(["untied", *self.more, *([measured["error"]] if "error" in measured else [])]),
            "steps_s": " ".join(f"{step:.5f}" for step in measured.get("steps_s", [])),
            "trial_wall_s": round(wall_s, 1),
        }


def sweep() -> Iterator[Run]:
    """Yield the runs, in no order."""
    shapes = {512: (24, 2048), 1024: (24, 4096), 2048: (16, 8192), 3072: (12, 8192), 4096: (8, 14336), 8192: (3, 28672)}
    for hidden, (layers, ffn) in shapes.items():
        few = 4 if hidden >= 4096 else 8
        base: dict[str, Any] = {"hidden": hidden, "num_layers": layers, "ffn": ffn, "num_micro_batches": few}
        for mbs in (1, 2, 4, 8) if hidden < 4096 else (1, 2, 4):
            yield Run(kind="dense", mbs=mbs, **base)
        for mbs in (1, 4):
            yield Run(kind="recompute", mbs=mbs, recompute="full", **base)
        yield Run(kind="recompute", mbs=1, recompute="selective", **base)
        yield Run(kind="sequence", mbs=1, seq_len=4096, **base)
        if hidden <= 2048:
            yield Run(kind="sequence", mbs=1, seq_len=512, **base)
            yield Run(kind="sequence", mbs=2, seq_len=1024, **base)
            yield Run(kind="batches", mbs=1, **{**base, "num_micro_batches": 2})
    yield Run(kind="dense", hidden=2560, num_layers=32, ffn=6912, vocab=128256)
    yield Run(kind="recompute", hidden=2560, num_layers=32, ffn=6912, vocab=128256, recompute="full")
    for hidden, layers, ffn, experts, top_k in (
        *((1024, 12, 2048, 8, 2), (1024, 12, 1024, 32, 4), (2048, 8, 1408, 64, 6)),
        *((2048, 8, 4096, 8, 2), (512, 12, 1024, 8, 2), (4096, 3, 14336, 8, 2)),
    ):
        shape: dict[str, Any] = {"hidden": hidden, "num_layers": layers, "ffn": ffn, "experts": experts, "top_k": top_k}
        for mbs in (1, 2, 4):
            yield Run(kind="moe", mbs=mbs, num_micro_batches=4, **shape)
        yield Run(kind="moe", mbs=1, num_micro_batches=4, recompute="full", **shape)
        yield Run(kind="moe-probe", mbs=1, num_micro_batches=4, ep=8, num_gpus=8, **shape)
    for hidden, layers, ffn in ((2048, 16, 8192), (4096, 8, 14336), (8192, 4, 28672)):
        for tp, mbs in ((2, 1), (4, 1), (8, 1), (8, 4)):
            gpus: dict[str, Any] = {"tp": tp, "num_gpus": 8}
            yield Run(kind="probe", hidden=hidden, num_layers=layers, ffn=ffn, mbs=mbs, num_micro_batches=4, **gpus)
    for more in (("--cuda-graph-impl", "local"), ("--cross-entropy-loss-fusion",)):
        yield Run(kind="lever", hidden=1024, num_layers=24, ffn=4096, more=more)


def main() -> None:
    """Import Megatron-LM, run every shape, and write each row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="the source tree of Megatron-LM")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no run after so many")
    parser.add_argument("--only", default="", help="run only kinds whose name holds this")
    parser.add_argument("--skip", type=Path, help="rows that are there already")
    options = parser.parse_args()
    runs = [run for run in dict.fromkeys(sweep()) if options.only in run.kind]
    random.Random(0).shuffle(runs)
    done = _done(options.skip) if options.skip else set()
    begin = time.monotonic()
    before = preload(options.tree)
    print(f"{len(runs)} runs; imported after {time.monotonic() - begin:.0f} s", flush=True)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for run in runs:
            if _key(run.row({}, 0.0)) in done or time.monotonic() - begin > options.seconds:
                continue
            start = time.monotonic()
            measured = forked(run, options.tree, before, options.output.with_suffix(".logs"))
            row = run.row(measured, time.monotonic() - start)
            writer.writerow(row)
            file.flush()
            print(run.kind, run.name, run.mbs, row["outcome"], row["step_time_s"], row["notes"][:200], flush=True)


def _done(path: Path) -> set[tuple[str, ...]]:
    with path.open(encoding="utf-8") as file:
        return {_key(row) for row in csv.DictReader(file)}


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    named = COLUMNS[5 : COLUMNS.index("step_time_s")]
    return (*(str(row[name]) for name in named), str(row["notes"]).partition("; error")[0])


def _not_yet() -> None:
    raise RuntimeError("no GPU while Megatron-LM is imported")


def preload(tree: Path) -> dict[str, Any]:
    """Import what every run needs, without a look at the GPU, which no fork could use after that."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    sys.path.insert(0, str(tree))
    import torch

    real = {"is_available": torch.cuda.is_available, "_lazy_init": torch.cuda._lazy_init}
    torch.cuda.is_available, torch.cuda._lazy_init = (lambda: False), _not_yet
    import megatron.training  # noqa: F401
    import torch._dynamo
    import torch._inductor.compile_fx

    runpy.run_path(str(tree / "pretrain_gpt.py"), run_name="preloaded")
    if torch.cuda.is_initialized():
        raise SystemExit("the GPU was looked at while Megatron-LM was imported; forks cannot use it")
    return real


def forked(run: Run, tree: Path, real: dict[str, Any], logs: Path, limit_s: float = 120.0) -> dict[str, Any]:
    """Return what a run measured, in a process of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    number = len(list(logs.glob("*.log")))
    log, result = logs / f"{number:03d}.log", logs / f"{number:03d}.json"
    child = os.fork()
    if child == 0:
        os.setsid()
        _train(run, tree, real, log, result)
    deadline = time.monotonic() + limit_s
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"error": "error: took too long"}
        time.sleep(0.02)
    measured: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"error": "error: no result"}
    return measured


def _train(run: Run, tree: Path, real: dict[str, Any], log: Path, result: Path) -> None:
    """Train in this process, write what was measured, and end."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import torch
    from megatron.training import training

    for name, function in real.items():
        setattr(torch.cuda, name, function)
    steps: list[float] = []
    step = training.train_step

    def timed(*arguments: Any, **named: Any) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        returned = step(*arguments, **named)
        torch.cuda.synchronize()
        steps.append(time.perf_counter() - start)
        return returned

    training.train_step = timed
    port = str(20000 + os.getpid() % 20000)
    own = {"RANK": "0", "WORLD_SIZE": str(run.num_gpus), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(own, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv = [str(tree / "pretrain_gpt.py"), *run.options()]
    print(" ".join(sys.argv), flush=True)
    measured: dict[str, Any] = {}
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:  # whatever ends it is a row
        traceback.print_exc()
        outcome = "oom" if isinstance(error, torch.cuda.OutOfMemoryError) else "error"
        if len(steps) < STEPS:
            measured = {"outcome": outcome, "error": f"error: {type(error).__name__}: {str(error)[:120]}"}
    if len(steps) >= STEPS:
        mib = 2**20
        measured = {
            "steps_s": steps,
            "allocated_mib": round(torch.cuda.max_memory_allocated() / mib, 2),
            "reserved_mib": round(torch.cuda.max_memory_reserved() / mib, 2),
        }
    result.write_text(json.dumps({**measured, "run": asdict(run)}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
