"""Every rule that a planned layout must hold, bound to a model and a job; `batch_constraints` has the same for many.

The order matters: a rule may divide by what a rule before it has checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts import constraints as common
from zenith_tune.layouts import megatron_constraints as megatron
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.search_space import SIZES, check_recompute, check_size, limits_of

Explain = Callable[[ModelSpec, JobSpec, Layout], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """Hold one rule: its name, its law in words, and what tells why a layout breaks it."""

    name: str
    problem: str
    explain: Explain


def _world(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_dense_world(at.num_gpus, tp=at.tp, pp=at.pp, cp=at.cp)


def _expert_world(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_expert_world(at.num_gpus, etp=at.etp, ep=at.ep, pp=at.pp)


def _batch(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_batch(at.global_batch, dp=at.dp, mbs=at.micro_batch)


def _heads(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_attention_heads(model.num_heads, tp=at.tp)


def _query_groups(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_query_groups_either_way(model.num_kv_heads, tp=at.tp)


def _ffn(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    has_dense = model.num_moe_layers < model.num_layers
    return megatron.check_ffn(model.ffn_hidden, tp=at.tp) if has_dense else None


def _pipeline(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    strings = limits_of(job.framework.name).layout_strings
    return megatron.check_pipeline_split(model.num_layers, pp=at.pp, vp=at.vp, layout_strings=strings)


def _interleaving(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_interleaving(at.vp, pp=at.pp)


def _interleaved_batches(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_interleaved_batches(at.num_micro_batches, pp=at.pp, vp=at.vp)


def _context(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_context_chunks(job.seq_len, cp=at.cp)


def _sequence_parallel(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_sequence_parallel(at.sequence_parallel, tp=at.tp)


def _sequence_chunks(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_sequence_chunks(job.seq_len, cp=at.cp, tp=at.tp, sp=at.sequence_parallel)


def _experts(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return common.check_experts(model.num_experts or None, ep=at.ep)


def _expert_tensor(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    if (reason := megatron.check_expert_tensor_experts(model.num_experts, etp=at.etp)) is not None:
        return reason
    return megatron.check_expert_ffn(model.moe_ffn_hidden, etp=at.etp) if model.num_experts else None


def _expert_bias(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_expert_tensor_bias(bool(model.num_experts and model.linear_bias), etp=at.etp)


def _expert_sequence(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_expert_sequence_parallel(model.num_experts, tp=at.tp, sp=at.sequence_parallel)


def _recompute_takes(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_recompute_takes_layers(at.recompute, num_layers=at.recompute_layers)


def _recompute_chunk(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    chunk = layers_per_chunk(model.num_layers, pp=at.pp, vp=at.vp)
    return megatron.check_recompute_in_chunk(at.recompute, num_layers=at.recompute_layers, chunk=chunk)


def _zero_pipeline(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    return megatron.check_zero_pipeline(at.zero, pp=at.pp)


def _zero_stage(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    name = job.framework.name
    return megatron.check_zero_stage(at.zero, framework=name, stages=limits_of(name).zero_stages)


def _framework(model: ModelSpec, job: JobSpec, at: Layout) -> str | None:
    name = job.framework.name
    reasons = [check_size(size, getattr(at, size), framework=name) for size in SIZES]
    return next((reason for reason in (*reasons, check_recompute(at.recompute, framework=name)) if reason), None)


_RULES: tuple[tuple[str, str, Explain], ...] = (
    ("world", "num_gpus must be divisible by tp*pp*cp", _world),
    ("expert_world", "num_gpus must be divisible by etp*ep*pp", _expert_world),
    ("batch", "gbs must be divisible by dp*mbs", _batch),
    ("heads", "num_attention_heads must be divisible by tp", _heads),
    ("query_groups", "num_query_groups must be a multiple or a divisor of tp", _query_groups),
    ("ffn", "ffn_hidden must be divisible by tp", _ffn),
    ("pipeline", "num_layers, or num_layers+2, must be divisible by pp*vp, or the chunks be laid out", _pipeline),
    ("interleaving", "vp above 1 needs pp above 1", _interleaving),
    ("interleaved_batches", "micro-batches must be divisible by pp when vp is above 1", _interleaved_batches),
    ("context", "seq_len must be divisible by 2*cp", _context),
    ("sequence_parallel", "sequence parallelism needs tp above 1", _sequence_parallel),
    ("sequence_chunks", "seq_len must be divisible by cp*tp with sequence parallelism", _sequence_chunks),
    ("experts", "num_experts must be divisible by ep", _experts),
    ("expert_tensor", "moe_ffn_hidden must be divisible by etp", _expert_tensor),
    ("expert_bias", "etp must be 1 for experts with a linear bias", _expert_bias),
    ("expert_sequence", "a mixture of experts with tp above 1 needs sequence parallelism", _expert_sequence),
    ("recompute_takes", "only full recomputation takes a number of layers", _recompute_takes),
    ("recompute_chunk", "full recomputation takes 1 to layers per chunk", _recompute_chunk),
    ("zero_pipeline", "zero 2 and 3 need pp 1", _zero_pipeline),
    ("zero_stage", "the framework must have the stage of sharding", _zero_stage),
    ("framework", "the framework must be able to cut and recompute this way", _framework),
)
RULES = {name: LayoutRule(name=name, problem=problem, explain=explain) for name, problem, explain in _RULES}


def broken_rules(model: ModelSpec, job: JobSpec, layout: Layout) -> list[tuple[LayoutRule, str]]:
    """Return every rule that a layout breaks, with the reason; after a broken world only that one."""
    found = []
    for rule in RULES.values():
        if (reason := rule.explain(model, job, layout)) is not None:
            found.append((rule, reason))
            if rule.name == "world":
                break
    return found
