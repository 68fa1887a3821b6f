"""Commands that run Megatron-LM's MIMO example, examples/mimo/pretrain_mimo.py: its job, its rules, its options."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob
from zenith_tune.presets.launched_gpus import pretrain_gpus
from zenith_tune.presets.megatron_lm.options import CUSTOM_SPLITS
from zenith_tune.presets.mimo.job import PRESET, MimoOverrides, ReadCommand, checked_ranks
from zenith_tune.presets.mimo.megatron_model import megatron_encoder, megatron_language
from zenith_tune.presets.subject import job_cluster
from zenith_tune.shell.script import ProgramRun
from zenith_tune.study.parameters import Params, Value

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
