"""A layout as Megatron's options: one way for trials, for `plan --emit`, and for ms-swift.

A pipeline may be written down chunk by chunk: see `describe.megatron.pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from zenith_tune.describe.megatron.pipeline import ACCOUNT, ENDS, LAYOUT
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.layouts.pipeline import is_accounted, is_laid_out, laid_out_chunks
from zenith_tune.presets.emission import Target
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Value

OPTIONS = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "mbs": "--micro-batch-size",
    "gbs": "--global-batch-size",
    "recompute_granularity": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_num_layers": "--recompute-num-layers",
    "vit_gradient_checkpointing": "--vit-gradient-checkpointing",
}

SEQUENCE_PARALLEL = "--sequence-parallel"
CUSTOM_SPLITS = (LAYOUT, *ENDS, *ACCOUNT)
VIRTUAL, PER_CHUNK = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
CHUNKS, DUMPED_CHUNKS = "--virtual-pipeline-model-parallel-size", "virtual_pipeline_model_parallel_size"
"""The first of both by ms-swift's name, and as all dump it."""
PIPELINE = (VIRTUAL, PER_CHUNK, *CUSTOM_SPLITS)
RECOMPUTE = (
    OPTIONS["recompute_granularity"],
    OPTIONS["recompute_method"],
    OPTIONS["recompute_num_layers"],
    "--recompute-activations",
)
SHARDING = "--use-distributed-optimizer"
GRADS, GATHER = "--overlap-grad-reduce", "--overlap-param-gather"
TP_OVERLAP, EP_OVERLAP = "--tp-comm-overlap", "--overlap-moe-expert-parallel-comm"
BALANCED_ROUTING = "--moe-router-force-load-balancing"
BARE = frozenset((*ACCOUNT, RECOMPUTE[-1], SEQUENCE_PARALLEL, SHARDING, GRADS, GATHER, TP_OVERLAP, EP_OVERLAP))
"""Switches, which take no value."""

Wanted = dict[str, Value | None]
"""Options with their values; True for a switch that is on, None for what must not be there."""


ROUTED = "routing"
"""The name under which a point says that its run was measured with balanced routing."""
LOG_INTERVAL = "--log-interval"
"""After how many iterations Megatron prints a line; 100 unless it is given."""


def dumped_sizes(params: Mapping[str, Value]) -> dict[str, Value]:
    """Return the sizes of a point by the names that Megatron-LM and ms-swift dump them under."""
    names = {name: option[2:].replace("-", "_") for name, option in OPTIONS.items()}
    sizes = {names[name]: params[name] for name in ("tp", "pp", "cp", "ep", "mbs") if name in params}
    return sizes | ({DUMPED_CHUNKS: params["vp"]} if int(params.get("vp", 1)) > 1 else {})


def dumped_options(wanted: Wanted, *, tp: int) -> dict[str, Value]:
    """Return the options that are set by the names that Megatron-LM dumps them under, without the pipeline's split."""
    left_out = {*PIPELINE, *([SEQUENCE_PARALLEL] if tp == 1 else [])}  # which Megatron switches off there
    return {
        option[2:].replace("-", "_"): value
        for option, value in wanted.items()
        if value is not None and option not in left_out
    }


def with_options(line: ParsedCommand, wanted: Wanted) -> ParsedCommand:
    """Return the command with these options and switches, and without those that must not be there."""
    for option, value in wanted.items():
        if value is None and is_removable(line, option):
            line = line.remove(option)
    if values := {option: value for option, value in wanted.items() if value is not None and value is not True}:
        line = line.set(values)
    for option, value in wanted.items():
        if value is True:
            line = line.add_flag(option)
    return line


def is_removable(line: ParsedCommand, option: str) -> bool:
    """Return whether an option stands in the command itself; a word behind a switch would be taken for its value."""
    return line.get(option) == "" if option in BARE else line.has(option)


def layout_options(
    layout: Layout, *, num_layers: int | None, num_mtp_layers: int = 0, has_experts: bool, chunks_by: str = VIRTUAL
) -> Wanted:
    """Return what a layout sets and takes away; `chunks_by` is the option for the chunks per pipeline rank."""
    experts = ("ep", "etp") if has_experts else ()
    return {
        **{OPTIONS[name]: getattr(layout, name) for name in ("tp", "pp", "cp")},
        **pipeline_options(layout, num_layers=num_layers, num_mtp_layers=num_mtp_layers, chunks_by=chunks_by),
        # Unset, Megatron takes etp = tp and ms-swift 1: it is always said.
        **{OPTIONS[name]: getattr(layout, name) for name in experts},
        OPTIONS["mbs"]: layout.micro_batch,
        OPTIONS["gbs"]: layout.global_batch,
        SEQUENCE_PARALLEL: layout.sequence_parallel or None,
        SHARDING: layout.zero > 0 or None,
        **_recompute_options(layout),
    }


def _recompute_options(layout: Layout) -> Wanted:
    granularity, method, num_layers, flag = RECOMPUTE
    kind, _, how = layout.recompute.partition("/")
    return {
        granularity: None if kind == "none" else kind,
        method: how or None,
        num_layers: layout.recompute_layers if how else None,
        flag: None,
    }


def pipeline_options(
    layout: Layout, *, num_layers: int | None, num_mtp_layers: int = 0, chunks_by: str = VIRTUAL
) -> Wanted:
    """Return the options of the pipeline's split: even, with embedding and loss counted, or written down."""
    wanted: Wanted = dict.fromkeys(PIPELINE)
    pp, vp = layout.pp, layout.vp
    if num_layers is not None and is_laid_out(num_layers, pp=pp, vp=vp):
        chunks = laid_out_chunks(num_layers, pp=pp, vp=vp)
        return {**wanted, LAYOUT: pipeline_layout(chunks, num_mtp_layers=num_mtp_layers)}
    if vp > 1:
        wanted[chunks_by] = vp if chunks_by != PER_CHUNK else (num_layers or 0) // (pp * vp)
    if num_layers is not None and is_accounted(num_layers, pp=pp, vp=vp):
        wanted |= dict.fromkeys(ACCOUNT, True)
    return wanted


def pipeline_layout(chunks: Sequence[int], *, num_mtp_layers: int = 0) -> str:
    """Return the string for chunks of so many layers; MTP layers go next to the loss, where they take their input.

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


Options = dict[str, Value]
"""By their names with underscores; True is a switch."""


def megatron_options(target: Target) -> Options:
    """Return every option that the layout sets; sizes of 1 are said too, so that no default can differ."""
    layout, model = target.layout, target.model
    if layout.zero > 1:
        problem = "Megatron's distributed optimizer shards the optimizer alone, which is zero 1"
        raise UsageError(
            f"{problem}, but {layout_name(layout)} has zero {layout.zero}", hint="take --emit deepspeed or accelerate"
        )
    wanted = layout_options(
        layout,
        num_layers=model.num_layers,
        num_mtp_layers=model.num_mtp_layers,
        has_experts=bool(model.num_experts),
    )
    options: Options = {name[2:].replace("-", "_"): value for name, value in wanted.items() if value is not None}
    options["attention_backend"] = "flash" if layout.flash_attention else "unfused"
    if model.num_experts:
        options["moe_token_dispatcher_type"] = target.job.dispatcher
        options |= {"moe_enable_deepep": True} if target.job.dispatcher == "flex" else {}
        options["moe_grouped_gemm"] = True
    if layout.dp * layout.cp > 1:
        options["overlap_grad_reduce"] = True
        options |= {"overlap_param_gather": True} if layout.zero else {}
    return options


def low_precision(precision: str, *, is_sharded: bool) -> Options:
    """Return the options of matrix work below 16 bits, which go next to those of bf16.

    A sharded optimizer gathers its weights in fp8, so that no copies of them are cached next to those in bf16; mxfp8's
    are not, for which Megatron-LM asks more than this one option.
    """
    if "fp4" in precision:
        return {"fp4_format": "e2m1"}
    if "fp8" not in precision:
        return {}
    if precision == "mxfp8":
        return {"fp8_format": "hybrid", "fp8_recipe": "mxfp8"}
    return {"fp8_format": "hybrid", "fp8_recipe": "tensorwise", **({"fp8_param_gather": True} if is_sharded else {})}


def layout_notes(target: Target, option: str) -> list[str]:
    """Return what the reader of a pipeline that is written down should know; `option` gives the layers m."""
    number = target.model.num_mtp_layers
    if not number or not is_laid_out(target.model.num_layers, pp=target.layout.pp, vp=target.layout.vp):
        return []
    return [f"the pipeline is laid out with MTP: train with {option} {number}, or take m out of the layout"]
