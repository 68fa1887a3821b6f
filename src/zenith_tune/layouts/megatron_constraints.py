"""More rules of Megatron Core, one function each: None where the rule holds, else the reason in words.

Legend: as in `constraints`, and vp model chunks per pipeline rank, m micro-batches per step and rank, sp sequence
parallelism, s sequence length.
"""

from __future__ import annotations

from zenith_tune.layouts.constraints import check_multiple
from zenith_tune.layouts.pipeline import ACCOUNTED, is_accounted, is_even, is_laid_out


def check_pipeline_split(num_layers: int, *, pp: int, vp: int, layout_strings: bool = False) -> str | None:
    """Check that the layers go evenly into pp*vp chunks, or with embedding and loss counted, or laid out one by one."""
    if is_even(num_layers, pp=pp, vp=vp) or is_accounted(num_layers, pp=pp, vp=vp):
        return None
    if layout_strings and is_laid_out(num_layers, pp=pp, vp=vp):
        return None
    if layout_strings and pp > 1:
        return f"num_layers must be at least pp*vp, but {num_layers} < {pp}*{vp} = {pp * vp}"
    problem = "num_layers, or num_layers+2 with embedding and loss counted, must be divisible by pp*vp"
    both = f"neither {num_layers} nor {num_layers + ACCOUNTED}"
    return f"{problem}, but {both} gives whole chunks for {pp}*{vp} = {pp * vp}"


def check_interleaving(vp: int, *, pp: int) -> str | None:
    """Check that only a pipeline of several ranks is interleaved."""
    return None if vp == 1 or pp > 1 else f"vp above 1 needs pp above 1, but got vp {vp} and pp {pp}"


def check_interleaved_batches(m: int, *, pp: int, vp: int) -> str | None:
    """Check m % pp == 0 where the pipeline is interleaved: its schedule takes micro-batches in groups of pp."""
    return None if vp == 1 or m % pp == 0 else f"m must be divisible by pp when vp is above 1, but {m} % {pp} != 0"


def check_context_chunks(s: int, *, cp: int) -> str | None:
    """Check s % (2*cp) == 0: each rank takes a chunk from both ends of the sequence, for an equal causal share."""
    return None if cp == 1 else check_multiple("seq_len", s, "2*cp", 2, cp)


def check_sequence_parallel(sp: bool, *, tp: int) -> str | None:
    """Check that sequence parallelism stands on tensor parallelism."""
    return "sequence parallelism needs tp above 1, but got tp 1" if sp and tp == 1 else None


def check_sequence_chunks(s: int, *, cp: int, tp: int, sp: bool) -> str | None:
    """Check s % (cp*tp) == 0 with sequence parallelism, which cuts what context parallelism leaves."""
    return check_multiple("seq_len", s, "cp*tp with sequence parallelism", cp, tp) if sp else None


def check_expert_sequence_parallel(num_experts: int, *, tp: int, sp: bool) -> str | None:
    """Check that a mixture of experts with tp above 1 has sequence parallelism, without which it refuses to train."""
    if not num_experts or tp == 1 or sp:
        return None
    return f"a mixture of experts with tp above 1 needs sequence parallelism, but got tp {tp} without"


def check_expert_tensor_bias(has_bias: bool, *, etp: int) -> str | None:
    """Check that experts whose linear layers have a bias are not cut by tensor parallelism."""
    return None if etp == 1 or not has_bias else f"etp must be 1 for experts with a linear bias, but got {etp}"


def check_expert_tensor_experts(num_experts: int, *, etp: int) -> str | None:
    """Check that a model without experts has etp 1."""
    return None if num_experts or etp == 1 else f"etp must be 1 for a model without experts, but got {etp}"


def check_ffn(width: int, *, tp: int) -> str | None:
    """Check ffn_hidden % tp == 0."""
    return check_multiple("ffn_hidden", width, "tp", tp)


def check_expert_ffn(width: int, *, etp: int) -> str | None:
    """Check moe_ffn_hidden % etp == 0."""
    return check_multiple("moe_ffn_hidden", width, "etp", etp)


def check_recompute_takes_layers(recompute: str, *, num_layers: int) -> str | None:
    """Check that only full recomputation is given a number of layers."""
    if recompute.startswith("full") or num_layers == 0:
        return None
    return f"recompute {recompute} takes no number of layers, but got {num_layers}"


def check_recompute_in_chunk(recompute: str, *, num_layers: int, chunk: int) -> str | None:
    """Check that full recomputation is given 1 to as many layers as a chunk has; they need not divide it."""
    if not recompute.startswith("full") or 1 <= num_layers <= chunk:
        return None
    return f"recompute {recompute} takes 1 to layers per chunk, but got {num_layers} with {chunk} layers per chunk"


def check_zero_pipeline(zero: int, *, pp: int) -> str | None:
    """Check that gradients and weights are not sharded under a pipeline, which would gather them per micro-batch."""
    return None if zero < 2 or pp == 1 else f"zero 2 and 3 need pp 1, but got zero {zero} and pp {pp}"


def check_zero_stage(zero: int, *, framework: str, stages: tuple[int, ...]) -> str | None:
    """Check that the framework has this stage of sharding."""
    if zero in stages:
        return None
    return f"zero must be one of {', '.join(map(str, stages))} with {framework}, but got {zero}"
