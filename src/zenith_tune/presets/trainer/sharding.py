"""How the ranks of a Trainer share a model's state: not at all (DDP), by FSDP version 2, or by DeepSpeed's ZeRO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from zenith_tune.presets.trainer.job import TrainerJob
from zenith_tune.study.parameters import Value

SHARDING = "sharding"
DDP = "DistributedDataParallel"
FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config", "deepspeed"
FIRST_FSDP2 = 5
"""The release of transformers from which `fsdp` is a switch that means version 2."""
AUTO = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
)
"""What DeepSpeed takes from the Trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Hold one way; the arguments are those of TrainingArguments, with JSON in place of a file."""

    name: str
    zero: int
    """What is sharded, as the stages of ZeRO number it."""
    wrapper: str = DDP
    arguments: Mapping[str, Value] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)
    """What Accelerate's plugins hold of it."""

    def goes(self, job: TrainerJob) -> bool:
        """Tell whether a job that ran as plain data parallelism can be started so."""
        trainer = job.trainer
        if trainer is None or (job.dialect is not None and not self.arguments.keys() <= job.dialect.keys.keys()):
            return False
        if DEEPSPEED in self.arguments:
            return DEEPSPEED in trainer.packages
        # Without a GPU Accelerate leaves the option aside.
        return FSDP not in self.arguments or (trainer.compute > 0 and trainer.major_release >= FIRST_FSDP2)


def _zero(stage: int) -> Sharding:
    precision = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    config = {"zero_optimization": {"stage": stage}, **precision, **AUTO}
    return Sharding(
        name=f"zero{stage}",
        zero=stage,
        wrapper="DeepSpeedEngine",
        arguments={DEEPSPEED: json.dumps(config)},
        settings={"zero_optimization.stage": stage},
    )


def _fsdp(name: str, zero: int, arguments: Mapping[str, Value]) -> Sharding:
    return Sharding(
        name=name,
        zero=zero,
        wrapper="FSDPModule",
        arguments={FSDP: True, **arguments},
        settings={"fsdp_version": 2, "reshard_after_forward": zero == 3},
    )


SHARDINGS = {
    each.name: each
    for each in (
        Sharding(name="none", zero=0),
        _fsdp("fsdp2", 3, {}),
        _fsdp("fsdp2_no_reshard", 2, {FSDP_CONFIG: json.dumps({"reshard_after_forward": False})}),
        _zero(1),
        _zero(2),
        _zero(3),
    )
}


def shardings_for(job: TrainerJob) -> tuple[str, ...]:
    """Return the names of those that a job can have, its own first; none where there is no choice."""
    if job.num_processes == 1 or job.wrapper != DDP:
        return ()
    found = tuple(name for name, each in SHARDINGS.items() if each.goes(job))
    return found if len(found) > 1 else ()


def sharding_of(params: Mapping[str, Value]) -> Sharding:
    """Return that of a point."""
    return SHARDINGS[str(params.get(SHARDING, "none"))]
