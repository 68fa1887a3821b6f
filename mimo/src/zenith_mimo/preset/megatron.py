"""Commands that run Megatron-LM's MIMO example, examples/mimo/pretrain_mimo.py: its job, its rules, its options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.preset.device import gpu_device
from zenith_mimo.preset.job import PRESET, MimoArguments, ReadCommand, checked_ranks
from zenith_mimo.preset.megatron_model import megatron_encoder, megatron_language
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import divisors
from zenith_tune.presets.megatron.emit import NEWER_THAN_HOPPER
from zenith_tune.presets.megatron.options import CUSTOM_SPLITS
from zenith_tune.presets.shared.launched_gpus import pretrain_gpus
from zenith_tune.presets.shared.subject import job_cluster
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.study.parameters import Params, Value

PROGRAM = "pretrain_mimo.py"
DEFAULTS = {"encoder-tp": 2, "encoder-dp": 2, "llm-offset": 4, "llm-tp": 2, "llm-pp": 1, "llm-dp": 2, "llm-ep": 1}
"""The example's own."""
REQUIRED = ("--use-distributed-optimizer", "--calculate-per-token-loss")
"""Switches that it refuses to train without."""
PREFETCH = "--mimo-encoder-prefetch"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
OTHER_CONNECTIONS = ("--use-torch-fsdp2", "--use-megatron-fsdp", "--overlap-moe-expert-parallel-comm")
"""With these Megatron only warns."""
OTHER_STAGES = (*CUSTOM_SPLITS, "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank")
"""Stages of different lengths, whose number a trial must not change, and several of a rank, which MIMO cannot run."""
SHARDS, EXPERT_SHARDS = "--tensor-parallel-num-weight-shards", "--expert-tensor-parallel-num-weight-shards"
"""Weights in more parts than tp, gathered by ranks with samples of their own (GTP)."""
MAX_EP = 64


def read_megatron(run: ProgramRun, given: MimoArguments) -> ReadCommand:
    """Read a command of Megatron's example."""
    args = MegatronArgs.of(run.arguments)
    _refuse_other_kinds(args)
    num_ranks = given.n_gpus or pretrain_gpus(run)
    if num_ranks is None:
        problem = f"{PRESET} must know the number of GPUs, but the command does not say"
        raise UsageError(problem, hint="give --gpus 8, or --nproc-per-node 8 in the command")
    cluster = job_cluster(given.cluster, num_ranks)
    job = _job(args, cluster, checked_ranks(num_ranks), given)
    experts = job.language.num_experts
    return ReadCommand(
        job=job,
        seq_length=args.count("--seq-length") or 0,
        options=lambda candidate: megatron_options(candidate, job),
        switches=lambda candidate: dict.fromkeys(REQUIRED, True),
        own=_own_point(args),
        variables=_connections(run, cluster.gpu.name),
        expert_parallel=tuple(ep for ep in divisors(experts) if ep <= MAX_EP) if experts else (1,),
        notes=_notes(given, job),
    )


def megatron_options(candidate: MimoCandidate, job: MimoJob) -> Mapping[str, Value]:
    """Return the options of a layout; expert tp is always given, because versions differ in its default."""
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
    return {**{f"--{name}": value for name, value in names.items()}, "--micro-batch-size": candidate.micro_batch}


def _refuse_other_kinds(args: MegatronArgs) -> None:
    if args.has("--llm-only"):
        raise UsageError(
            f"{PRESET} searches layouts of two modules, but the command has --llm-only", hint="take it out"
        )
    if (cp := args.count("--llm-cp") or 1) != 1:
        raise UsageError(f"--llm-cp must be 1 in Megatron's MIMO example, but is {cp}: correct it in the command")
    # As the example does: only features of a frozen tower can be made ahead, for a projector that learns.
    if args.has(PREFETCH) and (not args.has("--freeze-vit") or args.has("--freeze-projection")):
        problem = f"{PREFETCH} needs --freeze-vit and a trained projector"
        raise UsageError(problem, hint="add --freeze-vit, take --freeze-projection out, or do not prefetch")
    if (option := args.first(*OTHER_STAGES)) is not None:
        problem = (
            f"{PRESET} plans pipelines of one stage on each rank, all of the same length, but the command has {option}"
        )
        raise UsageError(problem, hint="take it out")


def _connections(run: ProgramRun, gpu_name: str) -> Callable[[MimoCandidate], Mapping[str, str]]:
    """Return the variable that validate_args asks for: before Blackwell, where the language model has tp above 1."""
    is_set = run.variables.get(CONNECTIONS, os.environ.get(CONNECTIONS)) == "1"
    other = MegatronArgs.of(run.arguments).first(*OTHER_CONNECTIONS) is not None
    if is_set or other or gpu_name.lower().startswith(NEWER_THAN_HOPPER):
        return lambda candidate: {}
    return lambda candidate: {CONNECTIONS: "1"} if candidate.language.tp > 1 else {}


def _job(args: MegatronArgs, cluster: ClusterSpec, num_ranks: int, given: MimoArguments) -> MimoJob:
    expert_tensor, expert_shards = args.count("--llm-expt-tp") or 1, args.count(EXPERT_SHARDS) or 0
    if expert_shards % expert_tensor:
        problem = f"{EXPERT_SHARDS} must be a multiple of expert tp, but got {expert_shards} and {expert_tensor}"
        raise UsageError(f"{problem}: correct it in the command")
    batch = args.count("--global-batch-size")
    if batch is None:
        problem = "the command must have the global batch, but has no --global-batch-size"
        raise UsageError(problem, hint="add it to the command")
    return MimoJob(
        encoder=megatron_encoder(given.encoder, args),
        language=megatron_language(args),
        num_ranks=num_ranks,
        global_batch=batch,
        items=given.items or (1,),
        device=gpu_device(cluster, given, is_low=True, is_sharded=True),
        can_share_ranks=False,
        can_pipeline_encoder=False,
        max_encoder_tp=1 if args.has(PREFETCH) else None,
        can_join_uneven=False,
        recompute=((False, args.text("--recompute-granularity") == "full"),),
        expert_tensor=expert_tensor,
        weight_shards=args.count(SHARDS) or 0,
        expert_shards=expert_shards,
    )


def _own_point(args: MegatronArgs) -> Params:
    sizes = {name: args.count(f"--{name}", least=0) for name in DEFAULTS}
    known = {name: DEFAULTS[name] if size is None else size for name, size in sizes.items()}
    return {
        "encoder_ranks": known["llm-offset"],
        "encoder_tp": known["encoder-tp"],
        "llm_tp": known["llm-tp"],
        "llm_pp": known["llm-pp"],
        "llm_ep": known["llm-ep"],
        "mbs": args.count("--micro-batch-size") or 1,
    }


def _notes(given: MimoArguments, job: MimoJob) -> tuple[str, ...]:
    shards, notes = job.weight_shards, []
    if shards:
        notes.append(
            f"dp of the llm counts the ranks that gather its {shards} weight shards: --llm-dp is dp * tp / {shards}"
        )
    if given.encoder:
        return tuple(notes)
    note = "the encoder is taken for RADIO-H, since the command does not give its shape: give --args encoder_layers=32"
    return (*notes, f"{note},encoder_hidden=1280,encoder_heads=16 if it is another")
