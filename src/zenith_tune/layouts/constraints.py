"""The rules that a layout must hold, one function each: None where it holds, else the reason in words.

Legend: n_gpus ranks; tp tensor, pp pipeline, cp context, dp data, ep expert and etp expert tensor parallel sizes;
mbs micro-batch and gbs global batch, in samples.

`documented` rules take every parallel size for a factor of n_gpus. Megatron Core and ms-swift fold the experts over the
same ranks instead: dense n_gpus = tp*cp*dp*pp, experts n_gpus = etp*ep*edp*pp.
"""

from __future__ import annotations


def check_documented_world(n_gpus: int, *, tp: int, pp: int, cp: int, ep: int, etp: int) -> str | None:
    """Check n_gpus % (tp*pp*cp*ep*etp) == 0.

    >>> check_documented_world(8, tp=4, pp=2, cp=2, ep=1, etp=1)
    'n_gpus must be divisible by tp*pp*cp*ep*etp, but 8 % (4*2*2*1*1 = 16) != 0'
    """
    return check_multiple("n_gpus", n_gpus, "tp*pp*cp*ep*etp", tp, pp, cp, ep, etp)


def check_dense_world(n_gpus: int, *, tp: int, pp: int, cp: int) -> str | None:
    """Check n_gpus % (tp*pp*cp) == 0, Megatron's rule for the dense layers."""
    return check_multiple("n_gpus", n_gpus, "tp*pp*cp", tp, pp, cp)


def check_expert_world(n_gpus: int, *, etp: int, ep: int, pp: int) -> str | None:
    """Check n_gpus % (etp*ep*pp) == 0, Megatron's rule for the experts, found out only when it builds its groups."""
    return check_multiple("n_gpus", n_gpus, "etp*ep*pp", etp, ep, pp)


def check_batch(gbs: int, *, dp: int, mbs: int) -> str | None:
    """Check gbs % (dp*mbs) == 0, so that every rank takes the same number of micro-batches."""
    return check_multiple("gbs", gbs, "dp*mbs", dp, mbs)


def check_expert_tensor(etp: int, *, tp: int) -> str | None:
    """Check etp <= tp, a documented rule that Megatron does not have."""
    return None if etp <= tp else f"etp must not exceed tp, but {etp} > {tp}"


def check_query_groups(num_query_groups: int, *, tp: int) -> str | None:
    """Check num_query_groups % tp == 0, the documented rule and Megatron's up to 0.14."""
    return check_multiple("num_query_groups", num_query_groups, "tp", tp)


def check_query_groups_either_way(num_query_groups: int, *, tp: int) -> str | None:
    """Check that num_query_groups is a multiple or a divisor of tp, Megatron's rule from 0.16."""
    if num_query_groups % tp == 0 or tp % num_query_groups == 0:
        return None
    return f"num_query_groups must be a multiple or a divisor of tp, but got {num_query_groups} and {tp}"


def check_attention_heads(num_attention_heads: int, *, tp: int) -> str | None:
    """Check num_attention_heads % tp == 0."""
    return check_multiple("num_attention_heads", num_attention_heads, "tp", tp)


def check_layers(num_layers: int, *, pp: int) -> str | None:
    """Check num_layers % pp == 0."""
    return check_multiple("num_layers", num_layers, "pp", pp)


def check_recompute_layers(recompute_num_layers: int, *, num_layers: int, pp: int) -> str | None:
    """Check (num_layers/pp) % recompute_num_layers == 0, a documented rule that Megatron does not have."""
    stage = num_layers // pp
    if stage % recompute_num_layers == 0:
        return None
    problem = "recompute_num_layers must divide num_layers/pp"
    return f"{problem}, but {num_layers}/{pp} = {stage} and {stage} % {recompute_num_layers} != 0"


def check_experts(num_experts: int | None, *, ep: int) -> str | None:
    """Check num_experts % ep == 0, and that a model without experts has ep 1."""
    if num_experts is not None:
        return check_multiple("num_experts", num_experts, "ep", ep)
    return None if ep == 1 else f"ep must be 1 for a model without experts, but got {ep}"


def check_vision_granularity(recompute_granularity: str) -> str | None:
    """Check that a vision-language model is not recomputed selectively."""
    if recompute_granularity != "selective":
        return None
    return "recompute_granularity must be full for a vision-language model, but got selective"


def check_vision_method(recompute_method: str) -> str | None:
    """Check that a vision-language model is not recomputed by blocks."""
    if recompute_method != "block":
        return None
    return "recompute_method must be uniform for a vision-language model, but got block"


def check_selective_once(method: str, num_layers: int, *, first_method: str, first_num_layers: int) -> str | None:
    """Check that selective recomputation, which knows neither method nor layers, stands in the space only once."""
    if (method, num_layers) == (first_method, first_num_layers):
        return None
    problem = "selective recomputation takes neither recompute_method nor recompute_num_layers"
    same = f"{first_method} and {first_num_layers}"
    return f"{problem}: {method} and {num_layers} are the same run under another name as {same}"


def check_multiple(name: str, value: int, factors: str, *sizes: int) -> str | None:
    """Check value % product of sizes == 0, and say so in the names of both."""
    product = 1
    for size in sizes:
        product *= size
    if value % product == 0:
        return None
    shown = str(product) if len(sizes) == 1 else f"({'*'.join(map(str, sizes))} = {product})"
    return f"{name} must be divisible by {factors}, but {value} % {shown} != 0"
