"""A job of nanotron: the values of its YAML, the layout of a point, and the values that a point stands for.

Keys are those of nanotron 0.4 (2024-01) to main of 2026-08 (src/nanotron/config); a key that only later releases have
is changed where the file or the first run shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.describe.config_spec import model_spec_from_config
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, read_number
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, HEADS, WHOLE_QUERY_GROUPS, WORLD, rule_of
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.config_job import MBS, ConfigJob, ConfigLever
from zenith_tune.study.parameters import Value

TP, PP, DP = "parallelism.tp", "parallelism.pp", "parallelism.dp"
CP, EP = "parallelism.context_parallel_size", "parallelism.expert_parallel_size"
TP_MODE, ASYNC = "parallelism.tp_mode", "parallelism.tp_linear_async_communication"
RECOMPUTE = "parallelism.recompute_layer"
SEQUENCE_PARALLEL = "REDUCE_SCATTER"
MICRO_BATCH, ACCUMULATION = "tokens.micro_batch_size", "tokens.batch_accumulation_per_replica"
SEQ_LEN = "tokens.sequence_length"
ZERO = "optimizer.zero_stage"
FUSED_ADAM = "optimizer.optimizer_factory.torch_adam_is_fused"
FAMILIES = ("llama", "qwen2")
MOST_TP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NanotronJob(ConfigJob):
    """A job of nanotron."""

    @property
    def micro_batch(self) -> int:
        return self.count(MICRO_BATCH)

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.count(ACCUMULATION) * self.count(DP)

    @property
    def seq_len(self) -> int | None:
        return self.count(SEQ_LEN)

    def model(self) -> ModelSpec:
        front = "model.model_config."
        config = {key.removeprefix(front): value for key, value in self.values.items() if key.startswith(front)}
        family = next((name for name in FAMILIES if config.get(f"is_{name}_config") is True), None)
        if family is None:
            raise UsageError("the model is known where it is a Llama or Qwen2", hint="give --model NAME")
        return model_spec_from_config({"model_type": family, **config}, family)

    @property
    def splits_sequence(self) -> bool:
        """Whether ranks of tensor parallelism split the sequence."""
        return str(self.values.get(TP_MODE)).upper() == SEQUENCE_PARALLEL

    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        tp, pp, zero = self.count(TP), self.count(PP), 1 if self.values.get(ZERO) else 0
        sizes = divisors(self.num_gpus)
        recompute = bool(self.values.get(RECOMPUTE))
        return {
            "tp": (tp, *(size for size in sizes if size != tp and size <= MOST_TP)),
            "pp": (pp, *(size for size in sizes if size != pp)),
            "zero": (zero, 1 - zero) if self.num_gpus > 1 else (zero,),
            "recompute": (recompute, not recompute) if RECOMPUTE in self.values else (recompute,),
        }

    def layout(self, params: Mapping[str, Value]) -> Layout:
        tp = int(params["tp"])
        return Layout(
            num_gpus=self.num_gpus,
            tp=tp,
            pp=int(params["pp"]),
            cp=self.count(CP),
            micro_batch=int(params[MBS]),
            global_batch=self.global_batch,
            zero=int(params["zero"]),
            schedule="gpipe" if self.values.get("parallelism.pp_engine") == "afab" else "1f1b",
            recompute="full/uniform" if params["recompute"] else "none",
            recompute_layers=int(bool(params["recompute"])),
            sequence_parallel=self.splits_sequence and tp > 1,
        )

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        layout = self.layout(params)
        recompute = {RECOMPUTE: bool(params["recompute"])} if RECOMPUTE in self.values else {}
        return {
            TP: layout.tp,
            PP: layout.pp,
            DP: layout.dp,
            MICRO_BATCH: layout.micro_batch,
            ACCUMULATION: layout.num_micro_batches,
            ZERO: layout.zero,
            **recompute,
        }


RULES = (
    WORLD,
    HEADS,
    WHOLE_QUERY_GROUPS,
    BATCH,
    # OneForwardOneBackwardPipelineEngine refuses fewer.
    rule_of(
        "micro_batches",
        "1f1b needs at least pp-1 micro-batches",
        lambda facts, at: (at.pp == 1) | at.schedule_is(("gpipe",)) | (at.num_micro_batches >= at.pp - 1),
        lambda facts, at: f"got {at.num_micro_batches} with pp {at.pp}",
    ),
    rule_of(
        "stages",
        "a pipeline must have no more stages than num_layers",
        lambda facts, at: at.pp <= facts.num_layers,
        lambda facts, at: f"got {at.pp} and {facts.num_layers}",
        asks="num_layers",
    ),
)
LEVERS: tuple[ConfigLever[NanotronJob], ...] = (
    ConfigLever(
        name="sequence_parallel",
        sets={TP_MODE: SEQUENCE_PARALLEL},
        goes=lambda at: int(at.params["tp"]) > 1 and not at.job.splits_sequence,
        saves={"compute": 0.02},
        memory=-0.1,
        source=f"{ASSUMED}: Korthikanti et al. 2022 (arXiv 2205.05198), whose memory it saves",
    ),
    ConfigLever(
        name="async_tp",
        sets={ASYNC: True},
        goes=lambda at: int(at.params["tp"]) > 1 and at.job.splits_sequence,
        saves={"tp": 0.3},
        source=f"{ASSUMED}: a product starts while its input is still gathered",
    ),
    ConfigLever(
        name="fused_optimizer",
        sets={FUSED_ADAM: True},
        is_known=False,
        saves={"optimizer": 0.3},
        source=f"{ASSUMED}: one kernel for all parameters in place of one for each operation",
    ),
)

_STEP = re.compile(
    r"iteration: ([0-9]{1,12}) / [0-9]{1,12} \| [^\n]{0,200}?(?:elapsed_)?time_per_iteration_ms: ([0-9.]{1,12}[KMG]?)"
    r" \| tokens_per_sec: ([0-9.]{1,12}[KMGTP]?) \| tokens_per_sec_per_gpu: ([0-9.]{1,12}[KMGTP]?)"
    r" \| global_batch_size: [0-9.]{1,12}[KMGT]?(?P<more>[^\n]*)"
)
_LOSS = re.compile(r"\blm_loss: ([0-9.eE+-]{1,20}|nan|-?inf)")
_NORM = re.compile(r"\bgrad_norm: ([0-9.eE+-]{1,20}|nan|-?inf)")
_TFLOPS = re.compile(r"\bmodel_tflops_per_gpu: ([0-9.]{1,12})[ |\n]")
_PEAKS = re.compile(r"cuda_max_memory_reserved: ([0-9.]{1,12}[KMGT]?)|Peak reserved: ([0-9.]{1,12})MiB")
_SHOWN = re.compile(r"\brecompute_layer=(True|False)\b")
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_ROUNDING = 0.0015
"""Relative standard error of a number with three digits, on average."""


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of a log, whose numbers have three digits."""
    peaks = [_number(shown) if shown else float(mebibytes) * 2**20 for shown, mebibytes in _PEAKS.findall(log)]
    steps = {}
    for match in _STEP.finditer(log):
        more = match["more"] + "\n"
        loss, norm, tflops = (pattern.search(more) for pattern in (_LOSS, _NORM, _TFLOPS))
        steps[int(match[1])] = Step(
            number=int(match[1]),
            seconds=_number(match[2]) / 1000,
            tflops=read_number(tflops[1]) if tflops else None,
            flaw=first_flaw({"loss": loss[1] if loss else "", "grad_norm": norm[1] if norm else ""}),
            position=match.start(),
        )
    return LoggedSteps(
        steps=[steps[number] for number in sorted(steps)],
        peak_bytes=round(max(peaks)) if peaks else None,
        common_error=_ROUNDING,
    )


def _number(text: str) -> float:
    """Return a number as nanotron shortens it, such as 24.3K."""
    return float(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else float(text)


def shown_values(log: str) -> dict[str, Any]:
    """Return the values of later releases that a run prints with its configuration."""
    found = _SHOWN.search(log)
    return {RECOMPUTE: found[1] == "True"} if found else {}
