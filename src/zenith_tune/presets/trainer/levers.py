"""Levers of a Trainer: arguments besides the batch and checkpointing, which are tried on the point that won.

Names are those of TrainingArguments in transformers 5.22 and of TRL 1.16.
"""

from __future__ import annotations

import json

from zenith_tune.presets.levers import ASSUMED, LeverPoint
from zenith_tune.presets.shared.hooked_job import (
    AMPERE,
    ENVIRONMENT_LEVERS,
    MBS,
    RECOMPUTE,
    HookedLever,
    precision_levers,
)
from zenith_tune.presets.trainer.command import ATTENTION, MAX_LENGTH, PACKING
from zenith_tune.presets.trainer.job import TrainerJob

FLASH = "flash_attention_2"
CHECKPOINTING_OPTIONS = "gradient_checkpointing_kwargs"
FIRST_EVERY_N_LAYERS = (5, 17)
FEW_SHAPES = 0.1
MEASURED = "benchmarks/h200_levers.py on an H200 (2026-11-19, torch 2.11, transformers 5.17)"


def _padding_free_goes(at: LeverPoint[TrainerJob]) -> bool:
    """Return whether TRL takes padding_free: samples must not be cut, and attention must know where each one ends."""
    trainer = at.job.trainer
    return trainer is not None and "flash" in (trainer.attention or "") and trainer.arguments.get(MAX_LENGTH) is None


def _checkpoints_every_layer(at: LeverPoint[TrainerJob]) -> bool:
    trainer = at.job.trainer
    is_plain = at.job.arguments.get(CHECKPOINTING_OPTIONS) is None
    return bool(at.params[RECOMPUTE]) and is_plain and trainer is not None and trainer.release >= FIRST_EVERY_N_LAYERS


def _is_ddp_without_checkpointing(at: LeverPoint[TrainerJob]) -> bool:
    is_ddp = at.job.num_processes > 1 and at.job.is_plain and at.params.get("sharding", "none") == "none"
    return is_ddp and not at.params["checkpointing"]


LEVERS: tuple[HookedLever[TrainerJob], ...] = (
    HookedLever(
        name="attention",
        value="sdpa",
        sets={ATTENTION: "sdpa"},
        goes=lambda at: at.job.takes(ATTENTION) and at.job.trainer is not None and at.job.trainer.attention == "eager",
        saves={"compute": 0.35},
        memory=-0.4,
        source=f"{MEASURED}: 0.65 of the step, and 31 GiB in place of 55, of a Llama in padded batches",
    ),
    HookedLever(
        name="attention",
        value="flash2",
        sets={ATTENTION: FLASH},
        package="flash_attn",
        least_compute=AMPERE,
        goes=lambda at: at.job.takes(ATTENTION) and at.job.precision in ("bf16", "fp16"),
        saves={"compute": 0.05},
        is_alone=True,
        source=f"{ASSUMED}: Dao 2023 (arXiv 2307.08691) against torch's own kernel, which is the default",
    ),
    HookedLever(
        name="liger",
        sets={"use_liger_kernel": True},
        package="liger_kernel",
        least_compute=70,
        saves={"compute": 0.1, "overhead": 0.2},
        memory=-0.2,
        is_alone=True,
        source="Hsu et al. 2024 (Liger Kernel, arXiv 2410.10989): 20% more throughput, 60% less memory on average",
    ),
    HookedLever(
        name="compile",
        sets={"torch_compile": True},
        least_compute=70,
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: fused kernels and fewer launches; on an H200 it took 28 GB in place of 40 (2026-08)",
    ),
    HookedLever(
        name="compile_mode",
        value="reduce-overhead",
        sets={"torch_compile_mode": "reduce-overhead"},
        least_compute=70,
        needs={"compile": lambda at: at.job.arguments.get("torch_compile") is True},
        # A CUDA graph is of one length.
        goes=lambda at: at.job.new_shapes < FEW_SHAPES,
        saves={"overhead": 0.3},
        memory=0.05,
        is_alone=True,
        source=f"{ASSUMED}: CUDA graphs in place of launches",
    ),
    HookedLever(
        name="attention",
        value="flex",
        sets={ATTENTION: "flex_attention"},
        least_compute=AMPERE,
        goes=lambda at: at.job.takes(ATTENTION) and at.job.trainer is not None and at.job.trainer.attention == "sdpa",
        saves={"compute": 0.04},
        memory=-0.04,
        is_alone=True,
        source=f"{MEASURED}: 0.96 of the step of a Llama in padded batches, after 45 s of compilation",
    ),
    HookedLever(
        name="checkpoint_layers",
        value=2,
        sets={CHECKPOINTING_OPTIONS: json.dumps({"every_n_layers": 2})},
        goes=_checkpoints_every_layer,
        saves={"compute": 0.12},
        memory=0.3,
        source=f"{ASSUMED}: every second layer is recomputed (transformers#48200): half of a third of a step",
    ),
    HookedLever(
        name="fused_optimizer",
        sets={"optim": "adamw_torch_fused"},
        goes=lambda at: at.job.arguments.get("optim") == "adamw_torch",
        saves={"optimizer": 0.5},
        source=f"{MEASURED}: 6 ms less of a step of 163 ms, of 0.6B parameters",
    ),
    HookedLever(
        name="data_workers",
        sets={
            "dataloader_num_workers": 4,
            "dataloader_persistent_workers": True,
            "dataloader_prefetch_factor": 4,
        },
        goes=lambda at: at.job.arguments.get("dataloader_num_workers") == 0,
        saves={"overhead": 0.05},
        source=f"{MEASURED}: 0.66 of the step where a sample takes 10 ms of the host, the same with ready tokens",
    ),
    HookedLever(
        name="no_unused_search",
        sets={"ddp_find_unused_parameters": False},
        goes=_is_ddp_without_checkpointing,
        saves={"dp": 0.1, "overhead": 0.05},
        is_alone=True,
        source=f"{ASSUMED}: DDP walks the graph for unused parameters in every pass, unless it is said that none are",
    ),
    HookedLever(
        name="padding_free",
        sets={"padding_free": True},
        least_compute=AMPERE,
        goes=_padding_free_goes,
        saves={"compute": 0.1},
        is_alone=True,
        source=f"{ASSUMED}: TRL, no tokens of padding; by how much depends on the lengths",
    ),
    HookedLever(
        name=PACKING,
        sets={PACKING: True},
        # Where rows would hold several samples each.
        goes=lambda at: (at.job.samples_of_row or 0.0) >= 2 and at.job.arguments.get("padding_free") is False,
        saves={"compute": 0.3},
        numerics=True,
        source=f"{ASSUMED}: TRL, no padding and full rows; an update has as many tokens, of other samples",
    ),
    HookedLever(
        name="length_grouping",
        sets={"train_sampling_strategy": "group_by_length"},
        goes=lambda at: int(at.params[MBS]) > 1 and at.job.new_shapes > FEW_SHAPES,
        saves={"compute": 0.2},
        numerics=True,
        source=f"{ASSUMED}: samples of like lengths share a batch, where 39% of tokens were padding (2026-11)",
    ),
    *ENVIRONMENT_LEVERS,
    *precision_levers(tf32={"tf32": True}, bf16={"bf16": True}),
)
PACKAGES = tuple(sorted({lever.package for lever in LEVERS if lever.package} | {"deepspeed", "peft", "trl"}))
"""What a run is asked for."""
REPORTED = tuple(sorted({MAX_LENGTH, *(name for lever in LEVERS for name in lever.sets)} - {ATTENTION}))
