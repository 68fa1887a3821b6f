"""Commands that run Megatron-LM's MIMO example, examples/mimo/pretrain_mimo.py: its job, its rules, its options.

s  tokens of a sequence          h  hidden size        f  width of a feed-forward part
d  width of a Mamba layer        E  experts            w  hidden size of the language model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors
from zenith_tune.mimo.model_config import TransformerConfig
from zenith_tune.mimo.work import ModuleWork, PartWork, layer_work
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob
from zenith_tune.presets.launched_gpus import pretrain_gpus
from zenith_tune.presets.megatron_lm.options import CUSTOM_SPLITS
from zenith_tune.presets.mimo.job import PRESET, MimoOverrides, ReadCommand, checked_ranks
from zenith_tune.presets.subject import job_cluster
from zenith_tune.shell.script import ProgramRun
from zenith_tune.study.parameters import Params, Value

PATTERN = "--hybrid-layer-pattern"
KINDS = "M*-E"
"""Mamba, attention, feed-forward, experts."""
ENCODER = {"layers": 32, "hidden": 1280, "heads": 16, "patches": 1024}
"""RADIO-H at 512 * 512 pixels a tile, which the example trains with; its options do not tell."""
ROWS_PER_PATCH = 0.25
"""Four patches are one token of the text (pixel shuffle)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Hold one layer's parameters and its forward FLOPs for one token."""

    params: float = 0.0
    expert_params: float = 0.0
    flops: float = 0.0


def megatron_language(args: MegatronArgs) -> ModuleWork:
    """Return the language model's work by sample; layers of different kinds count as their average."""
    h, s = _needed(args, "--hidden-size"), _needed(args, "--seq-length")
    heads, vocab = _needed(args, "--num-attention-heads"), _needed(args, "--vocab-size")
    layers = _layers(args, h, s, heads)
    num = len(layers)
    mean = _Layer(
        params=sum(layer.params for layer in layers) / num,
        expert_params=sum(layer.expert_params for layer in layers) / num,
        flops=sum(layer.flops for layer in layers) / num,
    )
    top_k = args.count("--moe-router-topk") or 2
    trains = _language_training(args)
    pattern = _pattern(args)
    num_segments = pattern.count("|") + 1 if "|" in pattern else 0
    return ModuleWork(
        num_layers=num,
        layer=PartWork(
            **trains,
            split_flops=s * mean.flops,
            split_params=mean.params,
            whole_params=2 * h,
            expert_params=mean.expert_params,
            split_kept=s * 12 * h,
            whole_kept=2 * s * h,
        ),
        first=PartWork(split_params=vocab * h, **trains),
        last=PartWork(split_flops=2.0 * s * h * vocab, split_params=vocab * h, split_kept=3 * s * vocab, **trains),
        hidden_numbers=s * h,
        widths=_language_widths(args, pattern, s, heads),
        depths=() if num_segments else (("the language model's layers", num),),
        groups=(("the query groups", _query_groups(args, heads)),),
        num_segments=num_segments,
        dispatched_numbers=s * h * top_k,
        num_experts=args.count("--num-experts", least=0) or 0,
    )


def megatron_encoder(sizes: Mapping[str, int], args: MegatronArgs) -> ModuleWork:
    """Return the encoder's work by tile."""
    sizes = {**ENCODER, **sizes}
    s, h, w = sizes["patches"], sizes["hidden"], _needed(args, "--hidden-size")
    if h % sizes["heads"]:
        problem = "encoder_hidden must be a multiple of encoder_heads"
        raise UsageError(f"{problem}, but got {h} and {sizes['heads']}: correct --args")
    config = TransformerConfig(num_layers=sizes["layers"], hidden_size=h, num_heads=sizes["heads"], ffn_size=4 * h)
    rows = s * ROWS_PER_PATCH
    projector = 4 * h * w
    has_tower, has_projector = _trains_tower(args), _trains_projector(args)
    tower = {"is_trained": has_tower, "passes_gradient": has_tower}
    return ModuleWork(
        num_layers=sizes["layers"],
        layer=replace(layer_work(config, s, is_causal=False), **tower),
        first=PartWork(whole_flops=2.0 * s * 768 * h, whole_params=768 * h, **tower),
        last=PartWork(
            split_flops=2.0 * rows * projector,
            split_params=projector,
            split_kept=rows * w,
            is_trained=has_projector,
            passes_gradient=has_tower,
        ),
        hidden_numbers=s * h,
        output_numbers=rows * w,
        widths=(("the encoder's heads", sizes["heads"]), ("the language model's width", w)),
    )


def _trains_tower(args: MegatronArgs) -> bool:
    return not (args.has("--freeze-vit") or args.text("--training-stage") in ("stage1", "stage2"))


def _trains_projector(args: MegatronArgs) -> bool:
    return not args.has("--freeze-projection")


def _language_training(args: MegatronArgs) -> dict[str, bool]:
    """Return what is trained: gradients go through a frozen language model to a tower or a projector that is."""
    is_trained, has_behind = not args.has("--freeze-lm"), _trains_tower(args) or _trains_projector(args)
    if not (is_trained or has_behind):
        problem = "something must be trained, but the command freezes the language model, the encoder and its projector"
        raise UsageError(problem, hint="take one of the --freeze- options out")
    return {"is_trained": is_trained, "passes_gradient": is_trained or has_behind}


def _language_widths(args: MegatronArgs, pattern: str, s: int, heads: int) -> tuple[tuple[str, int], ...]:
    """Return what tp must divide: also the sequence, which is split wherever tp is above 1."""
    widths = [("the language model's heads", heads), ("the sequence length", s)]
    if "M" in pattern:
        mamba = _mamba_sizes(args, _needed(args, "--hidden-size"))
        widths += [("the Mamba heads", mamba.heads), ("the Mamba groups", mamba.groups)]
        if mamba.heads % mamba.groups:
            problem = "the Mamba heads must be a multiple of the Mamba groups"
            raise UsageError(f"{problem}, but got {mamba.heads} and {mamba.groups}: correct it in the command")
    if "-" in pattern or not (pattern or args.count("--num-experts", least=0)):
        widths.append(("the feed-forward size", _ffn(args)))
    if shared := args.count("--moe-shared-expert-intermediate-size", least=0):
        widths.append(("the shared experts' size", shared))
    return tuple(widths)


def _pattern(args: MegatronArgs) -> str:
    """Return the pattern of the layers without that of the heads behind them; empty where the command has none."""
    return (args.text(PATTERN) or "").partition("/")[0]


def _layers(args: MegatronArgs, h: int, s: int, heads: int) -> list[_Layer]:
    makers = {"M": _mamba(args, h), "*": _attention(args, h, s, heads), "-": _dense(args, h), "E": _experts(args, h)}
    if not args.has(PATTERN):
        second = makers["E"] if args.count("--num-experts", least=0) else makers["-"]
        return [_both(makers["*"], second)] * _needed(args, "--num-layers")
    kinds = _pattern(args).replace("|", "")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        problem = f"{PATTERN} must be made of {' '.join(KINDS)} for a plan"
        raise UsageError(f"{problem}, but has {' '.join(unknown) or 'nothing'}", hint="take --preset megatron")
    return [makers[kind] for kind in kinds]


def _both(first: _Layer, second: _Layer) -> _Layer:
    return _Layer(
        params=first.params + second.params,
        expert_params=first.expert_params + second.expert_params,
        flops=first.flops + second.flops,
    )


def _attention(args: MegatronArgs, h: int, s: int, heads: int) -> _Layer:
    width = heads * (args.count("--kv-channels") or h // heads)
    params = h * width * 2 + 2 * h * width * _query_groups(args, heads) / heads
    return _Layer(params=params, flops=2 * params + 2 * s * width)


def _query_groups(args: MegatronArgs, heads: int) -> int:
    return (args.count("--num-query-groups") or 1) if args.has("--group-query-attention") else heads


class _MambaSizes(NamedTuple):
    """Hold the shape of a Mamba layer."""

    heads: int
    dim: int
    groups: int
    state: int


def _mamba_sizes(args: MegatronArgs, h: int) -> _MambaSizes:
    dim = args.count("--mamba-head-dim") or 64
    return _MambaSizes(
        heads=args.count("--mamba-num-heads") or 2 * h // dim,
        dim=dim,
        groups=args.count("--mamba-num-groups") or 8,
        state=args.count("--mamba-state-dim") or 128,
    )


def _mamba(args: MegatronArgs, h: int) -> _Layer:
    heads, dim, groups, state = _mamba_sizes(args, h)
    d = heads * dim
    params = h * (2 * d + 2 * groups * state + heads) + d * h
    return _Layer(params=params, flops=2 * params + 6 * d * state)


def _dense(args: MegatronArgs, h: int) -> _Layer:
    params = _matrices(args) * h * _ffn(args)
    return _Layer(params=params, flops=2 * params)


def _ffn(args: MegatronArgs) -> int:
    return args.count("--ffn-hidden-size") or 4 * _needed(args, "--hidden-size")


def _experts(args: MegatronArgs, h: int) -> _Layer:
    f = args.count("--moe-ffn-hidden-size") or args.count("--ffn-hidden-size") or 4 * h
    num, top_k = args.count("--num-experts", least=0) or 0, args.count("--moe-router-topk") or 2
    one = _matrices(args) * h * f
    shared = _matrices(args) * h * (args.count("--moe-shared-expert-intermediate-size", least=0) or 0)
    return _Layer(params=shared + h * num, expert_params=num * one, flops=2 * (shared + h * num + top_k * one))


def _matrices(args: MegatronArgs) -> int:
    return 3 if args.has("--swiglu") else 2


def _needed(args: MegatronArgs, option: str) -> int:
    number = args.count(option)
    if number is None:
        raise UsageError(f"the command must tell the model's shape, but has no {option}", hint="add it to the command")
    return number


PROGRAM, KIND = "pretrain_mimo.py", "mimo"
DEFAULTS = {"encoder-tp": 2, "encoder-dp": 2, "llm-offset": 4, "llm-tp": 2, "llm-pp": 1, "llm-dp": 2, "llm-ep": 1}
"""The example's own."""
REQUIRED = ("--use-distributed-optimizer", "--calculate-per-token-loss")
"""Switches that it refuses to train without."""
ONLY_ONE = ("encoder-pp", "encoder-cp", "llm-cp")
OTHER_STAGES = (*CUSTOM_SPLITS, "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")
"""Stages of different lengths, whose number a trial must not change, and several of a rank, which MIMO cannot run."""
SHARDS, EXPERT_SHARDS = "--tensor-parallel-num-weight-shards", "--expert-tensor-parallel-num-weight-shards"
"""Weights in more parts than tp, gathered by ranks with samples of their own (GTP)."""
RATE = 0.4
"""The part of a GPU's peak that large models reach; the ranking changes with it, and trials correct it."""
ROOM = 0.92
"""The part of a GPU's memory that training may fill."""
MAX_EP = 64


def read_megatron(run: ProgramRun, given: MimoOverrides) -> ReadCommand:
    """Read a command of Megatron's example."""
    args = MegatronArgs.of(run.arguments)
    prefix = option_prefix(args)
    _refuse_other_kinds(args, prefix)
    num_ranks = given.n_gpus or pretrain_gpus(run)
    if num_ranks is None:
        problem = f"{PRESET} must know the number of GPUs, but the command does not tell"
        raise UsageError(problem, hint="give --args n_gpus=8, or --nproc-per-node 8 in the command")
    job = _job(args, prefix, checked_ranks(num_ranks), given)
    experts = job.language.num_experts
    return ReadCommand(
        job=job,
        seq_length=args.count("--seq-length") or 0,
        options=lambda candidate: megatron_options(candidate, job, prefix),
        switches=lambda candidate: dict.fromkeys(REQUIRED, True),
        own=_own_point(args, prefix),
        expert_parallel=tuple(ep for ep in divisors(experts) if ep <= MAX_EP) if experts else (1,),
        notes=_notes(given, job),
    )


def option_prefix(args: MegatronArgs) -> str:
    """Return how the tree at hand spells its options: later ones begin with --mimo-."""
    return "--mimo-" if args.first("--mimo-encoder-tp", "--mimo-llm-tp") else "--"


def megatron_options(candidate: MimoCandidate, job: MimoJob, prefix: str = "--") -> Mapping[str, Value]:
    """Return the options of a layout; expert tp is always said, because trees differ in its default."""
    gathering = job.weight_shards // candidate.language.tp or 1
    names = {
        "encoder-tp": candidate.encoder.tp,
        "encoder-dp": candidate.encoder.dp,
        "llm-offset": candidate.language.offset,
        "llm-tp": candidate.language.tp,
        "llm-pp": candidate.language.pp,
        "llm-dp": candidate.language.dp // gathering,
        "llm-ep": candidate.expert_parallel,
        "llm-expt-tp": job.expert_tensor,
    }
    return {**{f"{prefix}{name}": value for name, value in names.items()}, "--micro-batch-size": candidate.micro_batch}


def _refuse_other_kinds(args: MegatronArgs, prefix: str) -> None:
    if args.has(f"{prefix}llm-only"):
        raise UsageError(
            f"{PRESET} searches layouts of two modules, but the command has {prefix}llm-only", hint="take it out"
        )
    for name in ONLY_ONE:
        if (args.count(f"{prefix}{name}") or 1) != 1:
            problem = f"{prefix}{name} must be 1 in Megatron's MIMO example, but is {args.count(f'{prefix}{name}')}"
            raise UsageError(f"{problem}: correct it in the command")
    if (option := args.first(*OTHER_STAGES)) is not None:
        problem = (
            f"{PRESET} plans pipelines of one stage on each rank, all of the same length, but the command has {option}"
        )
        raise UsageError(problem, hint="take it out")


def _job(args: MegatronArgs, prefix: str, num_ranks: int, given: MimoOverrides) -> MimoJob:
    cluster = job_cluster(given.cluster, num_ranks)
    link = cluster.fast_link if num_ranks <= cluster.fast_domain else cluster.network
    if cluster.num_nodes == 1 and cluster.fast_domain == 1:
        link = cluster.node_link
    memory = cluster.gpu.memory_bytes * ROOM if given.memory_gib is None else given.memory_gib * 2**30
    expert_tensor = args.count(f"{prefix}llm-expt-tp") or 1
    batch = args.count("--global-batch-size")
    if batch is None:
        problem = "the command must tell the global batch, but has no --global-batch-size"
        raise UsageError(problem, hint="add it to the command")
    return MimoJob(
        encoder=megatron_encoder(given.encoder, args),
        language=megatron_language(args),
        num_ranks=num_ranks,
        global_batch=batch,
        items=given.images or (args.count("--num-image-tiles") or 1,),
        device=MimoDevice(
            flops_per_s=given.device_flops or cluster.gpu.bf16_flops * RATE,
            tensor_link=cluster.fast_link if cluster.fast_domain > 1 else cluster.node_link,
            link=link,
            memory_bytes=memory,
            number_bytes=2,
            state_bytes=18.0,
            sharded_bytes=12.0,
        ),
        can_share_ranks=False,
        can_pipeline_encoder=False,
        can_join_uneven=False,
        recompute=((False, args.text("--recompute-granularity") == "full"),),
        expert_tensor=expert_tensor,
        weight_shards=args.count(SHARDS) or 0,
        expert_shards=_expert_shards(args, expert_tensor),
    )


def _expert_shards(args: MegatronArgs, expert_tensor: int) -> int:
    shards = args.count(EXPERT_SHARDS) or 0
    if shards % expert_tensor:
        problem = f"{EXPERT_SHARDS} must be a multiple of expert tp, but got {shards} and {expert_tensor}"
        raise UsageError(f"{problem}: correct it in the command")
    return shards


def _own_point(args: MegatronArgs, prefix: str) -> Params:
    sizes = {name: args.count(f"{prefix}{name}", least=0) for name in DEFAULTS}
    known = {name: DEFAULTS[name] if size is None else size for name, size in sizes.items()}
    return {
        "encoder_ranks": known["llm-offset"],
        "encoder_tp": known["encoder-tp"],
        "llm_tp": known["llm-tp"],
        "llm_pp": known["llm-pp"],
        "llm_ep": known["llm-ep"],
        "mbs": args.count("--micro-batch-size") or 1,
    }


def _notes(given: MimoOverrides, job: MimoJob) -> tuple[str, ...]:
    shards, notes = job.weight_shards, []
    if shards:
        notes.append(
            f"dp of the llm counts the ranks that gather its {shards} weight shards: --llm-dp is dp * tp / {shards}"
        )
    if given.encoder:
        return tuple(notes)
    note = "the encoder is taken for RADIO-H, since the command does not tell its shape: give --args encoder_layers=32"
    return (*notes, f"{note},encoder_hidden=1280,encoder_heads=16,encoder_patches=1024 if it is another")
