"""Placements of a job of reinforcement learning, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from zenith_rl.planning.rl_planner import PlacedStep
from zenith_tune.layouts.layout import layout_name
from zenith_tune.units import count, format_bytes, format_seconds

PUBLISHED = "NeMo RL's 18 published steps are 0.9 to 1.8 times as long as predicted so, 1.4 times on the median"


def placement_table(placed: Sequence[PlacedStep]) -> Table:
    """Return a row for each placement, the fastest first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("", "GPUs", "engines"):
        table.add_column(name, no_wrap=True)
    for name in ("step", "generate", "train", "idle", "tok/s/GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("training layout", min_width=20)
    for number, step in enumerate(placed, start=1):
        table.add_row(
            str(number),
            step.name,
            f"{step.generation.engines} x TP{step.generation.tp}",
            format_seconds(step.step_s),
            format_seconds(step.phases["generation"]),
            format_seconds(sum(step.phases.values()) - step.phases["generation"]),
            f"{step.idle:.0%}",
            f"{step.tokens_per_s_per_gpu:,.0f}",
            layout_name(step.layout),
            style="bold" if number == 1 else "",
        )
    return table


def print_placements(placed: Sequence[PlacedStep], console: Console) -> None:
    """Print the best placement, the settings that it means, and the others."""
    best = placed[0]
    generation, used = best.generation, sum(best.phases.values())
    where = f"on {count(best.num_gpus, 'GPU')}, all for each phase in turn" if best.together else (
        f"{best.generation_gpus} GPUs generate and {best.training_gpus} train"
    )  # fmt: skip
    shares = ", ".join(
        f"{name} {seconds / used:.0%}" for name, seconds in sorted(best.phases.items(), key=lambda item: -item[1])
    )
    step = f"{format_seconds(best.step_s)} a step, {best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    console.print(f"best: {step}: {where}", markup=False, soft_wrap=True)
    console.print(f"time: {shares}", markup=False, soft_wrap=True)
    engine = f"tensor_model_parallel_size={generation.tp} gpu_memory_utilization={generation.memory_share:.2f}"
    console.print(f"engines: {engine} max_num_seqs={generation.sequences}", markup=False, soft_wrap=True)
    memory = f"{format_bytes(best.training_bytes)} of {format_bytes(best.capacity_bytes)}"
    console.print(
        f"training: {layout_name(best.layout)}, {memory} with the longest prompt and answer",
        markup=False,
        soft_wrap=True,
    )
    if best.longest_tokens is not None:
        console.print(f"lengths: memory suffices up to {best.longest_tokens:,} tokens of both together", soft_wrap=True)
    console.print()
    console.print(placement_table(placed))
    console.print(f"\nby formulas alone: {PUBLISHED}", markup=False, soft_wrap=True)


def placement_object(placed: PlacedStep) -> dict[str, Any]:
    """Return a placement as plain values."""
    generation = placed.generation
    return {
        "placement": placed.name,
        "generation_gpus": placed.generation_gpus,
        "training_gpus": placed.training_gpus,
        "engines": generation.engines,
        "engine_tensor_parallel": generation.tp,
        "engine_memory_share": generation.memory_share,
        "engine_sequences": generation.sequences,
        "layout": layout_name(placed.layout),
        "step_s": placed.step_s,
        "phases_s": placed.phases,
        "idle_share": placed.idle,
        "tokens_per_s_per_gpu": placed.tokens_per_s_per_gpu,
        "longest_tokens": placed.longest_tokens,
        "training_memory_bytes": placed.training_bytes,
        "capacity_bytes": placed.capacity_bytes,
    }
