"""A layout as options of Megatron-LM, by their names with underscores; `True` is a switch.

ms-swift knows the same names, but for those that `ms_swift` changes.

A pipeline written down chunk by chunk, as Megatron-LM's --pipeline-model-parallel-layout.

E is the embedding, t a layer, m a layer that predicts further tokens (MTP), L the loss; | ends a chunk, and *n repeats
what stands before it: one letter, or several in parentheses. Chunk k belongs to pipeline rank k modulo pp.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import layout_name
from zenith_tune.layouts.pipeline import is_accounted, is_laid_out, laid_out_chunks
from zenith_tune.presets.emission import Target


def pipeline_layout(chunks: Sequence[int], *, num_mtp_layers: int = 0) -> str:
    """Return the string for chunks of so many layers; MTP layers go beside the loss, where they take their input.

    >>> pipeline_layout([3, 4, 4, 4, 2], num_mtp_layers=1)
    'Et*3|(t*4|)*3,t*2mL'
    """
    first, *inner, last = chunks
    middle = "".join(_run(layers, len(list(run))) for layers, run in groupby(inner))
    return f"E{_letters('t', first)}|{middle}{_letters('t', last)}{_letters('m', num_mtp_layers)}L"


def _run(layers: int, count: int) -> str:
    """Write so many equal chunks; the comma means nothing to Megatron, and parts them for a reader."""
    chunk = f"{_letters('t', layers)}|"
    return f"({chunk})*{count}," if count > 1 else chunk


def _letters(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


Options = dict[str, int | str | bool]


def megatron_options(target: Target) -> Options:
    """Return every option that the layout sets; sizes of 1 are said too, so that no default can differ."""
    at = target.layout
    if at.zero > 1:
        problem = "Megatron's distributed optimizer shards the optimizer alone, which is zero 1"
        raise UsageError(
            f"{problem}, but {layout_name(at)} has zero {at.zero}", hint="take --emit deepspeed or accelerate"
        )
    sizes: Options = {
        "tensor_model_parallel_size": at.tp,
        "pipeline_model_parallel_size": at.pp,
        "context_parallel_size": at.cp,
    }
    batch: Options = {"micro_batch_size": at.micro_batch, "global_batch_size": at.global_batch}
    return {**sizes, **_pipeline(target), **_experts(target), **batch, **_sharding(target), **_recompute(target)}


def low_precision(precision: str) -> Options:
    """Return the options of matrix work below 16 bits, which go beside those of bf16."""
    if "fp4" in precision:
        return {"fp4_format": "e2m1"}
    if "fp8" not in precision:
        return {}
    return {"fp8_format": "hybrid", "fp8_recipe": "mxfp8" if precision == "mxfp8" else "tensorwise"}


def has_layout(target: Target) -> bool:
    """Tell whether the pipeline is written down chunk by chunk, which says the virtual stages too."""
    return bool(is_laid_out(target.model.num_layers, pp=target.layout.pp, vp=target.layout.vp))


def layout_notes(target: Target, option: str) -> list[str]:
    """Return what the reader of a pipeline that is written down should know; `option` gives the layers m."""
    number = target.model.num_mtp_layers
    if not (has_layout(target) and number):
        return []
    return [f"the pipeline is laid out with MTP: train with {option} {number}, or take m out of the layout"]


def _pipeline(target: Target) -> Options:
    at, options = target.layout, Options()
    if has_layout(target):
        chunks = laid_out_chunks(target.model.num_layers, pp=at.pp, vp=at.vp)
        return {"pipeline_model_parallel_layout": pipeline_layout(chunks, num_mtp_layers=target.model.num_mtp_layers)}
    if at.vp > 1:
        options["num_virtual_stages_per_pipeline_rank"] = at.vp
    if is_accounted(target.model.num_layers, pp=at.pp, vp=at.vp):
        options["account_for_embedding_in_pipeline_split"] = True
        options["account_for_loss_in_pipeline_split"] = True
    return options


def _experts(target: Target) -> Options:
    if not target.model.num_experts:
        return {}
    # Unset, Megatron takes etp = tp and ms-swift 1: it is always said.
    sizes: Options = {
        "expert_model_parallel_size": target.layout.ep,
        "expert_tensor_parallel_size": target.layout.etp,
    }
    dispatch: Options = {"moe_token_dispatcher_type": target.job.dispatcher}
    if target.job.dispatcher == "flex":
        dispatch["moe_enable_deepep"] = True
    return {**sizes, **dispatch, "moe_grouped_gemm": True}


def _sharding(target: Target) -> Options:
    at, options = target.layout, Options()
    if at.sequence_parallel:
        options["sequence_parallel"] = True
    if at.zero:
        options["use_distributed_optimizer"] = True
    if at.dp * at.cp > 1:
        options["overlap_grad_reduce"] = True
        if at.zero:
            options["overlap_param_gather"] = True
    return options


def _recompute(target: Target) -> Options:
    at = target.layout
    options: Options = {"attention_backend": "flash" if at.flash_attention else "unfused"}
    if at.recompute == "none":
        return options
    granularity, _, method = at.recompute.partition("/")
    options["recompute_granularity"] = granularity
    if method:
        options |= {"recompute_method": method, "recompute_num_layers": at.recompute_layers}
    return options
