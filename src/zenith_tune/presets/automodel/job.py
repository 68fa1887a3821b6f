"""A job of NeMo Automodel: the values of its YAML and of the command's options, and those that a point stands for.

Keys are those of 0.7 (recipes/_dist_utils.py, components/training/step_scheduler.py), the lines of steps those of
recipes/llm/train_ft.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, gib_to_bytes, read_number
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, HEADS, WHOLE_QUERY_GROUPS, WORLD
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.config_job import MBS, ConfigJob, ConfigLever
from zenith_tune.presets.shared.subject import job_model
from zenith_tune.study.parameters import Value
from zenith_tune.units import positive_int

MICRO_BATCH, GLOBAL_BATCH = "step_scheduler.local_batch_size", "step_scheduler.global_batch_size"
STRATEGY, CHECKPOINTING = "distributed.strategy", "distributed.activation_checkpointing"
TP, CP, PP, EP = (f"distributed.{name}_size" for name in ("tp", "cp", "pp", "ep"))
SEQUENCE_PARALLEL = "distributed.sequence_parallel"
PACKED = "packed_sequence.packed_sequence_size"
MODEL = "model.pretrained_model_name_or_path"
FSDP, DDP = "fsdp2", "ddp"
MOST_TP = 8
ON = (True, "true", "on", "full", "enabled", "yes")
"""How the configuration says that activations are recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomodelJob(ConfigJob):
    """A job of NeMo Automodel."""

    @property
    def micro_batch(self) -> int:
        return self.count(MICRO_BATCH)

    @property
    def global_batch(self) -> int:
        return self.count(GLOBAL_BATCH)

    @property
    def seq_len(self) -> int | None:
        return positive_int(self.values.get(PACKED))

    def model(self) -> ModelSpec:
        named = self.values.get(MODEL)
        return job_model(named if isinstance(named, str) else None)

    @property
    def strategy(self) -> str:
        return str(self.values.get(STRATEGY) or FSDP)

    @property
    def is_recomputing(self) -> bool:
        own = self.values.get(CHECKPOINTING)
        return (own.lower() if isinstance(own, str) else own) in ON

    @property
    def is_selective(self) -> bool:
        return self.values.get(CHECKPOINTING) == "selective"

    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        tp, is_on = self.count(TP), self.is_recomputing
        others = [size for size in divisors(self.num_gpus) if size != tp and size <= MOST_TP]
        return {
            "tp": (tp, *others) if self.strategy == FSDP else (tp,),
            # What is selected stays: it has no estimate.
            "checkpointing": (is_on,) if self.is_selective else (is_on, not is_on),
        }

    def layout(self, params: Mapping[str, Value]) -> Layout:
        is_on, tp = bool(params["checkpointing"]), int(params["tp"])
        return Layout(
            num_gpus=self.num_gpus,
            tp=tp,
            cp=self.count(CP),
            micro_batch=int(params[MBS]),
            global_batch=self.global_batch,
            zero=0 if self.strategy == DDP else 3,
            recompute="full/uniform" if is_on else "none",
            recompute_layers=int(is_on),
            sequence_parallel=self.values.get(SEQUENCE_PARALLEL) is True and tp > 1,
        )

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        found: dict[str, Value] = {MICRO_BATCH: params[MBS]}
        if self.count(TP) != params["tp"]:
            found[TP] = params["tp"]
        if self.is_recomputing != params["checkpointing"]:
            found[CHECKPOINTING] = params["checkpointing"]
        return found


RULES = (WORLD, HEADS, WHOLE_QUERY_GROUPS, BATCH)
LEVERS: tuple[ConfigLever[AutomodelJob], ...] = (
    ConfigLever(
        name="sequence_parallel",
        sets={SEQUENCE_PARALLEL: True},
        goes=lambda at: int(at.params["tp"]) > 1 and at.job.strategy == FSDP,
        saves={"compute": 0.02},
        memory=-0.1,
        source=f"{ASSUMED}: Korthikanti et al. 2022 (arXiv 2205.05198), whose memory it saves",
    ),
    ConfigLever(
        name="compile",
        sets={"compile.enabled": True},
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: fused kernels and fewer launches",
    ),
)

_NUMBER = r"([0-9.eE+-]{1,30}|nan|-?inf)"
_STEP = re.compile(
    rf"\bstep ([0-9]{{1,12}}) \| epoch [0-9]{{1,9}} \| loss {_NUMBER} \| grad_norm {_NUMBER} \| lr [0-9.eE+-]{{1,30}}"
    rf" \| mem ([0-9.]{{1,12}}) GiB \| tps [0-9.]{{1,20}}\(([0-9.]{{1,20}})/gpu\)"
)


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of a log; the memory is what was allocated at most."""
    steps = {}
    for match in _STEP.finditer(log):
        steps[int(match[1])] = Step(
            number=int(match[1]) + 1,
            gpu_tokens_per_s=read_number(match[5]),
            memory_bytes=gib_to_bytes(match[4]),
            flaw=first_flaw({"loss": match[2], "grad_norm": match[3]}),
            position=match.start(),
        )
    found = [steps[number] for number in sorted(steps)]
    return LoggedSteps(steps=found, peak_bytes=max((step.memory_bytes or 0 for step in found), default=0) or None)
