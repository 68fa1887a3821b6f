"""Levers of a Trainer: arguments besides the batch and checkpointing, which are tried on the point that won.

Names are those of TrainingArguments in transformers 5.22 and of TRL 1.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.presets.levers import ASSUMED, LeverDeclaration, set_levers
from zenith_tune.presets.trainer.command import ATTENTION, MAX_LENGTH, PACKING
from zenith_tune.presets.trainer.job import TrainerJob
from zenith_tune.study.parameters import Params, Value

FLASH = "flash_attention_2"
AMPERE = 80
"""The compute capability, times ten, from which tf32, bf16 and FlashAttention run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSituation:
    """A point of a job that levers are asked for."""

    job: TrainerJob
    params: Params

    def has(self, name: str, value: Value) -> bool:
        """Return whether the job has an argument of this value already; one that is not known counts as had."""
        trainer = self.job.trainer
        if name == ATTENTION:
            return trainer is None or trainer.attention == value
        return trainer is None or name not in trainer.arguments or trainer.arguments[name] == value

    @property
    def compute(self) -> int:
        """The GPU's compute capability times ten; 0 without a GPU, or before the first run."""
        return self.job.trainer.compute if self.job.trainer else 0

    @property
    def packages(self) -> dict[str, bool]:
        """Which optional packages the job's own interpreter has; none are known before the first run."""
        trainer = self.job.trainer
        return {} if trainer is None else {name: name in trainer.packages for name in PACKAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLever(LeverDeclaration[TrainerSituation]):
    """A lever of a Trainer."""

    sets: Mapping[str, Value]
    """Arguments; the first decides whether the job has it already."""
    least_compute: int = 0
    """The compute capability, times ten, that it needs."""

    def is_for(self, at: TrainerSituation) -> bool:
        """Return whether it can be turned on for a point of a job that does not have it yet."""
        name, value = next(iter(self.sets.items()))
        if at.compute < self.least_compute or at.has(name, value):
            return False
        dialect = at.job.dialect
        return (dialect is None or self.sets.keys() <= dialect.keys.keys()) and self.goes(at)


def _padding_free_goes(at: TrainerSituation) -> bool:
    """Return whether TRL takes padding_free: samples must not be cut, and attention must know where each one ends."""
    trainer = at.job.trainer
    return trainer is not None and "flash" in (trainer.attention or "") and trainer.arguments.get(MAX_LENGTH) is None


def _is_ddp_without_checkpointing(at: TrainerSituation) -> bool:
    is_ddp = at.job.num_processes > 1 and at.job.is_plain and at.params.get("sharding", "none") == "none"
    return is_ddp and not at.params["checkpointing"]


LEVERS = (
    TrainerLever(
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
    TrainerLever(
        name="liger",
        sets={"use_liger_kernel": True},
        package="liger_kernel",
        least_compute=70,
        saves={"compute": 0.1, "overhead": 0.2},
        memory=-0.2,
        is_alone=True,
        source="Hsu et al. 2024 (Liger Kernel, arXiv 2410.10989): 20% more throughput, 60% less memory on average",
    ),
    TrainerLever(
        name="compile",
        sets={"torch_compile": True},
        least_compute=70,
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: fused kernels and fewer launches; on an H200 it took 28 GB in place of 40 (2026-08)",
    ),
    TrainerLever(
        name="fused_optimizer",
        sets={"optim": "adamw_torch_fused"},
        goes=lambda at: at.job.arguments.get("optim") == "adamw_torch",
        saves={"optimizer": 0.3},
        source=f"{ASSUMED}: one kernel for all parameters in place of one for each operation",
    ),
    TrainerLever(
        name="data_workers",
        sets={
            "dataloader_num_workers": 4,
            "dataloader_persistent_workers": True,
            "dataloader_prefetch_factor": 4,
        },
        goes=lambda at: at.job.arguments.get("dataloader_num_workers") == 0,
        saves={"overhead": 0.05},
        source=f"{ASSUMED}: batches are made beside the training; on an H200 with ready tokens 1% or less (2026-08)",
    ),
    TrainerLever(
        name="no_unused_search",
        sets={"ddp_find_unused_parameters": False},
        goes=_is_ddp_without_checkpointing,
        saves={"dp": 0.1, "overhead": 0.05},
        is_alone=True,
        source=f"{ASSUMED}: DDP walks the graph for unused parameters in every pass, unless it is said that none are",
    ),
    TrainerLever(
        name="padding_free",
        sets={"padding_free": True},
        least_compute=AMPERE,
        goes=_padding_free_goes,
        saves={"compute": 0.1},
        is_alone=True,
        source=f"{ASSUMED}: TRL, no tokens of padding; by how much depends on the lengths",
    ),
    TrainerLever(
        name=PACKING,
        sets={PACKING: True},
        # Where rows would hold several samples each.
        goes=lambda at: (at.job.samples_of_row or 0.0) >= 2 and at.job.arguments.get("padding_free") is False,
        saves={"compute": 0.3},
        numerics=True,
        source=f"{ASSUMED}: TRL, no padding and full rows; an update has as many tokens, of other samples",
    ),
    TrainerLever(
        name="tf32",
        sets={"tf32": True},
        least_compute=AMPERE,
        goes=lambda at: at.job.precision == "fp32",
        saves={"compute": 0.6},
        numerics=True,
        source=f"{ASSUMED}: matrix products with 10 bits of mantissa, at several times the rate",
    ),
    TrainerLever(
        name="bf16",
        sets={"bf16": True},
        least_compute=AMPERE,
        goes=lambda at: at.job.precision == "fp32",
        saves={"compute": 0.7},
        memory=-0.2,
        excludes=frozenset({"tf32"}),
        numerics=True,
        source=f"{ASSUMED}: Micikevicius et al. 2017 (arXiv 1710.03740), with bfloat16",
    ),
)
PACKAGES = tuple(sorted({lever.package for lever in LEVERS if lever.package} | {"deepspeed", "peft", "trl"}))
"""What a run is asked for."""
REPORTED = tuple(sorted({MAX_LENGTH, *(name for lever in LEVERS for name in lever.sets)} - {ATTENTION}))


def lever_arguments(levers: Mapping[str, Value]) -> dict[str, Value]:
    """Return the arguments that levers set."""
    return {name: value for lever in set_levers(LEVERS, levers) for name, value in lever.sets.items()}
