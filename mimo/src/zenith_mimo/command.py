"""A training script's options for its layout, its ranks and its log: what `zenithtune optimize --preset mimo` needs."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from zenith_mimo.planning.config import LANGUAGE, MimoLayout, ModuleLayout
from zenith_tune.errors import UsageError, ZenithTuneError

if TYPE_CHECKING:
    from zenith_mimo.trainer import StepResult

DEGREES = dict.fromkeys(["encoder-tp", "encoder-dp", "encoder-pp", "llm-tp", "llm-pp", "llm-dp"], 1)
BATCHES = {"micro-batch-size": 1, "global-batch-size": 16}
REPORT_S = 5.0
"""How long other ranks leave the first to report a mistake, before torchrun ends them all."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong option like any other mistake: under torchrun every rank would print its usage."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(message, hint="see --help.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the ranks of a script do, and how long one waits for another."""

    num_ranks: int
    train: Callable[[], None]
    timeout: timedelta = timedelta(minutes=10)


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """Add the options by which the preset gives a script its layout."""
    for name, default in {**DEGREES, **BATCHES}.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default {default}")
    parser.add_argument("--llm-offset", type=int, metavar="N", help="first rank of the language model")
    parser.add_argument("--encoder-recompute", action="store_true", help="recompute the encoder's activations")
    parser.add_argument("--llm-recompute", action="store_true", help="recompute the language model's activations")


def layout_of(options: argparse.Namespace, encoder: str = "vision") -> MimoLayout:
    """Return the layout of both modules that the options give; raises UsageError where it cannot be trained."""
    first = ModuleLayout(tp=options.encoder_tp, pp=options.encoder_pp, dp=options.encoder_dp)
    offset = first.size if options.llm_offset is None else options.llm_offset
    llm = ModuleLayout(tp=options.llm_tp, pp=options.llm_pp, dp=options.llm_dp, offset=offset)
    layout = MimoLayout(modules={encoder: first, LANGUAGE: llm})
    layout.num_microbatches(options.micro_batch_size, options.global_batch_size)
    started = int(os.environ.get("WORLD_SIZE", layout.world_size)) if "RANK" in os.environ else layout.world_size
    if started != layout.world_size:
        raise UsageError(f"the layout needs {layout.world_size} ranks, but {started} were started.")
    return layout


def iteration_line(
    iteration: int,
    num_iterations: int,
    done: StepResult,
    *,
    step_s: float,
    global_batch_size: int,
    consumed_samples: int,
    lr: float,
    tflops: float | None = None,
) -> str:
    """Return one line as Megatron prints it, which the preset's evaluator reads."""
    fields = [
        f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {iteration:8d}/{num_iterations:8d}",
        f"consumed samples: {consumed_samples:12d}",
        f"elapsed time per iteration (ms): {step_s * 1000:.1f}",
        *([] if tflops is None else [f"throughput per GPU (TFLOP/s/GPU): {tflops:.4f}"]),
        f"learning rate: {lr:.6E}",
        f"global batch size: {global_batch_size:5d}",
        f"lm loss: {done.loss:.6E}",
        "loss scale: 1.0",
        f"grad norm: {0.0 if done.grad_norm is None else done.grad_norm:.3f}",
        f"number of skipped iterations: {int(not done.success):3d}",
        f"number of nan iterations: {int(done.loss != done.loss):3d} |",
    ]
    return " | ".join(fields)


def run(prepare: Callable[[], Work]) -> int:
    """Train on all ranks, and return the exit code; mistakes are one line.

    `prepare` reads the command line. Under torchrun this process is one of the ranks, on a GPU if there is one for
    each; else all are started here, on the CPU.
    """
    try:
        work = prepare()
    except UsageError as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(REPORT_S)
        else:
            print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        if "RANK" in os.environ:
            _join(work)
            return 0
        # Imported before the ranks are forked from here, so that they have it all.
        importlib.import_module("zenith_mimo.checkpoint")
        from zenith_mimo.local_ranks import run_ranks

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        codes = run_ranks(work.num_ranks, work.train, timeout=work.timeout, grace_s=work.timeout.total_seconds())
        return (2 if set(codes) <= {0, 2} else 1) if any(codes) else 0
    except ZenithTuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def device() -> str:
    """Return where this rank computes."""
    import torch.distributed as dist

    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _join(work: Work) -> None:
    """Join the world that torchrun has started."""
    import torch
    import torch.distributed as dist

    rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    if has_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if has_gpus else "gloo", timeout=work.timeout)
    work.train()
    dist.destroy_process_group()
