"""Lines as DeepSpeed 0.19 and the Hugging Face Trainer print them."""

from __future__ import annotations

from collections.abc import Sequence

CLOCK = "[2026-08-01 12:00:00,123] [INFO] [timer.py:264:stop] "


def speed_line(step: int, samples_per_s: float, peak_gb: float = 2.34) -> str:
    speeds = f"RunningAvgSamplesPerSec={samples_per_s * 0.9}, CurrSamplesPerSec={samples_per_s}"
    memory = f"MemAllocated=1.2GB, MaxMemAllocated={peak_gb}GB"
    return f"{CLOCK}epoch=0/micro_step={2 * step}/global_step={step}, {speeds}, {memory}\n"


def speed_log(speeds: Sequence[float], ranks: int = 1) -> str:
    """Return a log whose steps begin with the third, as DeepSpeed's timer does."""
    return "".join(speed_line(step, speed) for step, speed in enumerate(speeds, start=3) for _ in range(ranks))


def timer_lines(seconds: float) -> str:
    """Return what one step prints under wall_clock_breakdown, its micro-batches first."""
    micro = "[Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.00 | bwd_inner_microstep: 1.90 | "
    micro += "bwd_allreduce_microstep: 0.10 | step_microstep: 0.02\n"
    fwd, bwd, step = (f"{1000 * seconds * share:.2f}" for share in (0.3, 0.6, 0.1))
    whole = f"[Rank 0] time (ms) | fwd: {fwd} | bwd: {bwd} | bwd_inner: {bwd} | bwd_allreduce: 0.10 | step: {step}\n"
    return micro * 2 + whole


def bar(done: int, total: int, elapsed: str, rate: str, title: str = "") -> str:
    return f"{title} {100 * done // total}%|###       | {done}/{total} [{elapsed}<00:10,  {rate}]\r"


TRAINER_END = (
    "{'train_runtime': 12.5, 'train_samples_per_second': 51.2, 'train_steps_per_second': 3.2, 'train_loss': 2.1}\n"
)
