"""What a Megatron-LM command says of itself: model, job, GPUs, batch, and the layout that it has now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.megatron.args import (
    MOST,
    MegatronArgs,
    has_flash_attention,
    is_local,
    job_from_args,
)
from zenith_tune.describe.megatron.model import model_from_args, model_name
from zenith_tune.describe.megatron.pipeline import LAYOUT, chunks_of, own_pipeline
from zenith_tune.describe.megatron.version import MegatronVersion, megatron_version
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import N
from zenith_tune.layouts.rules import JobFacts
from zenith_tune.presets.arguments import JobOverrides
from zenith_tune.presets.megatron.command import (
    LAYOUT_VARIABLE,
    OTHER_KINDS,
    find_pretrain_run,
    is_pretrain_script,
    is_read_whole,
    pretrain_kind,
    without_layout,
)
from zenith_tune.presets.megatron.options import BALANCED_ROUTING, CUSTOM_SPLITS, SEQUENCE_PARALLEL
from zenith_tune.presets.megatron.version import BALANCED_ROUTING as BALANCED_ROUTING_SINCE
from zenith_tune.presets.megatron.version import VersionFeatures
from zenith_tune.presets.shared.launched_gpus import job_gpus, pretrain_gpus
from zenith_tune.presets.shared.subject import job_cluster
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs

PRESET = "preset megatron-lm"
MEGATRON_FSDP = ("--use-megatron-fsdp", "--use-custom-fsdp")
"""By the releases' names, the newer first."""
TORCH_FSDP = "--use-torch-fsdp2"
FULL_SHARDING = (*MEGATRON_FSDP, TORCH_FSDP)
WEIGHT_SHARDS = "--tensor-parallel-num-weight-shards"
FULLY_SHARDED = 3
"""The stage of ZeRO that fully sharded data parallelism is planned as."""
BALANCED, AS_IS = ROUTINGS = ("balanced", "as-is")
"""How tokens go to experts while something is measured: to all alike, or where the command's own router sends them."""
MAX_GPUS = 1_000_000
SHAPE_HINT = "add them, or name the model by --model llama3-8b or the path of a config.json"


@dataclass(frozen=True, kw_only=True)
class MegatronLmOverrides(JobOverrides):
    """What the user says besides the command, with the vocabulary and how tokens are routed."""

    gbs: int | None = None
    vocab: int | None = None
    routing: str = BALANCED

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise UnknownNameError("routing", self.routing, ROUTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronJob:
    """A command's own job; `start` is the layout that it runs with as it is."""

    args: MegatronArgs
    run: ProgramRun | None
    model: ModelSpec | None
    """None only before a command is known."""
    job: JobSpec
    start: Layout
    version: MegatronVersion | None = None
    """Version of the Megatron tree that the command uses; None where it is not found."""
    routing: str = AS_IS
    """How tokens go to experts while the job is measured; only one that has experts can be balanced."""
    is_read_whole: bool = False
    """Whether all arguments of the run are surely those of `args`."""
    fixed: MegatronArgs | None = None
    """The arguments of a script whose layout a variable holds, without that; None of one that has no such variable."""

    @property
    def features(self) -> VersionFeatures:
        return VersionFeatures(self.version)

    @property
    def facts(self) -> JobFacts:
        """What the rules of layouts ask; nothing before a command is known."""
        return JobFacts() if self.model is None else JobFacts.of(self.model, self.job)

    @property
    def has_experts(self) -> bool:
        return self.model is not None and self.model.num_experts > 0

    @property
    def takes_options(self) -> bool:
        """Whether options that are added to the command reach the program: a script must pass them on."""
        return self.run is None or not self.run.script or self.run.added_at is not None

    @property
    def has_custom_split(self) -> bool:
        """Whether the command itself says which layers each stage of its pipeline gets."""
        return self.args.first(*CUSTOM_SPLITS) is not None

    @property
    def can_sequence_parallel(self) -> bool:
        """Whether sequence parallelism goes: torch's own norms, which need --no-persist-layer-norm, refuse it.

        A command that has it is taken at its word, also at tp 1, where Megatron ignores it.
        """
        has_own_norms = is_local(self.args) and self.args.has("--no-persist-layer-norm")
        return not has_own_norms or self.args.has(SEQUENCE_PARALLEL)

    def sequence_parallel(self, *, tp: N, cp: N) -> Any:
        """Return whether a layout of these sizes has it where the command does not say: it only saves memory.

        For arrays of sizes, which of them do.
        """
        return (tp > 1) & (self.job.seq_len % (tp * cp) == 0) & self.can_sequence_parallel

    @property
    def is_fully_sharded(self) -> bool:
        """Whether the command shards weights and gradients too."""
        return self.args.first(*FULL_SHARDING) is not None

    @property
    def can_shard(self) -> bool:
        """Whether the distributed optimizer goes: it takes Adam alone, and loads no state of another optimizer."""
        args = self.args
        if self.is_fully_sharded:
            return False
        loads_state = args.has("--load") and args.first("--no-load-optim", "--finetune") is None
        return args.text("--optimizer") in (None, "adam") and not loads_state and not args.has("--freeze-all-layers")


def at_most(what: str, number: int, most: int) -> int:
    """Return a number, or refuse one that is larger than any job has."""
    if number > most:
        shown = number if number < 10**18 else "far more"
        raise UsageError(f"{what} must be at most {most}, but is {shown}: correct it")
    return number


def read_job(command: str, given: MegatronLmOverrides) -> MegatronJob:
    """Read a command; what is missing is an error of one line with a hint."""
    reading = find_runs(command, is_pretrain_script)
    run = next(iter(reading.runs), None)
    if run is None:
        problem = (
            f"{PRESET} needs a command that runs one of Megatron-LM's pretrain_*.py, alone or in a readable script"
        )
        raise UsageError(
            f"{problem}, but {reading.unread or 'finds none'}", hint="write it out, or choose another --preset"
        )
    if pretrain_kind(run) in OTHER_KINDS:
        problem = f"{PRESET} knows the shapes of decoder-only models, but the command runs {run.program}"
        raise UsageError(problem, hint="take --preset megatron")
    args = MegatronArgs.of(run.arguments)
    if args.has("--yaml-cfg"):
        problem = f"{PRESET} reads arguments, but Megatron takes all of them from the file of --yaml-cfg"
        raise UsageError(problem, hint="give them as arguments")
    if args.has(WEIGHT_SHARDS):
        problem = f"{PRESET} knows data parallelism, sharded or not"
        raise UsageError(
            f"{problem}, but the command has {WEIGHT_SHARDS}", hint="take it out, or take --preset megatron"
        )
    job = job_of(args, run, given, num_gpus_of(run, given), fixed=_fixed_args(command, run))
    return replace(job, is_read_whole=is_read_whole(command, reading.runs))


def job_of(
    args: MegatronArgs,
    run: ProgramRun,
    given: MegatronLmOverrides,
    num_gpus: int,
    *,
    fixed: MegatronArgs | None = None,
) -> MegatronJob:
    """Return the job that arguments describe."""
    model, job = _model(args, given), job_from_args(args)
    start = _start(args, model, num_gpus=num_gpus, given=given)
    # What a variable holds is taken out where another layout is tried.
    own = own_pipeline(args, model.num_layers, pp=start.pp, vp=start.vp) if fixed is None else None
    found = MegatronJob(
        args=args,
        run=run,
        model=model,
        job=replace(job, framework=replace(job.framework, own_pipeline=own)),
        start=start,
        version=megatron_version(run),
        fixed=fixed,
    )
    # Routing is balanced from outside where the version has the option, and the command has it not.
    has_option = found.features.has(BALANCED_ROUTING_SINCE) and not args.has(BALANCED_ROUTING)
    return replace(found, routing=given.routing) if found.has_experts and has_option and found.takes_options else found


def provisional_job(run: ProgramRun | None, num_gpus: int) -> MegatronJob:
    """Return a job of which nothing but its GPUs is known yet."""
    job = JobSpec(seq_len=0, framework=load_framework("megatron"))
    start = Layout(num_gpus=num_gpus, global_batch=num_gpus)
    return MegatronJob(args=MegatronArgs.of([]), run=run, model=None, job=job, start=start)


def _fixed_args(command: str, run: ProgramRun) -> MegatronArgs | None:
    if LAYOUT_VARIABLE not in run.variables:
        return None
    other = find_pretrain_run(without_layout(command))
    is_other = other is not None and other.arguments != run.arguments
    return MegatronArgs.of(other.arguments) if other is not None and is_other else None


def unread_job(given: MegatronLmOverrides) -> MegatronJob:
    """Return what is known before a command is: what the user says, and no rule that needs more."""
    if given.n_gpus is None or given.gbs is None:
        missing = "n_gpus" if given.n_gpus is None else "gbs"
        raise UsageError(
            f"{PRESET} must know {missing} before it has a command", hint=f"give {missing}=8, or bind a command"
        )
    start = Layout(num_gpus=given.n_gpus, global_batch=given.gbs, zero=1)
    model = load_model(given.model) if given.model else None
    return replace(provisional_job(None, given.n_gpus), model=model, start=start)


def recompute_name(layout: Layout) -> str:
    """Return how a layout recomputes, in one word."""
    return f"{layout.recompute}{layout.recompute_layers or ''}"


def _model(args: MegatronArgs, given: MegatronLmOverrides) -> ModelSpec:
    model = load_model(given.model) if given.model else model_from_args(args, SHAPE_HINT)
    if given.vocab is None:
        return model
    model = replace(model, vocab=given.vocab)
    return model if given.model else replace(model, name=model_name(model))


def num_gpus_of(run: ProgramRun, given: MegatronLmOverrides) -> int:
    """Return how many GPUs a run takes."""
    found = job_gpus(PRESET, given.n_gpus, pretrain_gpus(run), asks_machine=False, option="--nproc-per-node")
    return at_most("the number of GPUs", found, MAX_GPUS)


def _start(args: MegatronArgs, model: ModelSpec, *, num_gpus: int, given: MegatronLmOverrides) -> Layout:
    tp, pp, cp, ep = (
        args.count(f"--{name}-parallel-size") or 1
        for name in ("tensor-model", "pipeline-model", "context", "expert-model")
    )
    mbs = args.count("--micro-batch-size")
    recompute, layers = _recompute(args)
    return Layout(
        num_gpus=num_gpus,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        # Unset, Megatron cuts experts as it cuts the dense layers.
        etp=args.count("--expert-tensor-parallel-size") or (tp if model.num_experts else 1),
        micro_batch=mbs or 1,
        global_batch=given.gbs or _global_batch(args, mbs, dp=num_gpus // (tp * pp * cp)),
        vp=_chunks(args, model.num_layers, pp),
        zero=int(args.has("--use-distributed-optimizer")),
        recompute=recompute,
        recompute_layers=layers,
        sequence_parallel=args.has(SEQUENCE_PARALLEL) and tp > 1,
        flash_attention=has_flash_attention(args),
    )


def _global_batch(args: MegatronArgs, mbs: int | None, *, dp: int) -> int:
    """Return samples per step; Megatron takes one micro-batch per rank where nothing is said."""
    found = args.count("--global-batch-size") or (mbs * max(dp, 1) if mbs else None)
    if found is None:
        problem = f"{PRESET} must know the global batch, but the command has no --global-batch-size"
        raise UsageError(problem, hint="add it, or give --gbs 256")
    return at_most("the global batch", found, MOST)


def _chunks(args: MegatronArgs, num_layers: int, pp: int) -> int:
    """Return the model chunks per pipeline rank, in whichever of its three ways the command says them."""
    if layout := args.text(LAYOUT):
        return max(len(chunks_of(layout)) // pp, 1)
    if chunks := args.count("--num-virtual-stages-per-pipeline-rank"):
        return chunks
    per_chunk = args.count("--num-layers-per-virtual-pipeline-stage")
    units = num_layers + sum(args.has(option) for option in CUSTOM_SPLITS if option.startswith("--account"))
    return max(units // (pp * per_chunk), 1) if per_chunk else 1


def _recompute(args: MegatronArgs) -> tuple[str, int]:
    granularity = "selective" if args.has("--recompute-activations") else args.text("--recompute-granularity")
    if granularity != "full":
        return granularity or "none", 0
    return f"full/{args.text('--recompute-method') or 'uniform'}", args.count("--recompute-num-layers") or 1


def subject_of(job: MegatronJob, cluster: str | None, topology: str | None = None) -> PlanSubject:
    """Return model, cluster and job; `cluster` is this machine unless it is named."""
    machines = job_cluster(cluster, job.start.num_gpus, topology)
    return PlanSubject(model=_with_vocab(job), cluster=machines, job=job.job)


def _with_vocab(job: MegatronJob) -> ModelSpec:
    """Return the model, its vocabulary looked up by the tokenizer's name where the command does not say."""
    model = job.model
    assert model is not None
    if model.vocab:
        return model
    tokenizer = job.args.text("--tokenizer-model")
    try:
        if tokenizer:
            known = replace(model, vocab=load_model(tokenizer).vocab)
            return replace(known, name=model_name(known))
    except UsageError:
        pass
    problem = f"{PRESET} must know the vocabulary, but only the tokenizer does and it cannot be looked up"
    raise UsageError(problem, hint="give --args vocab=128256 (the tokenizer's own number)")
