"""What a command, its TOML, and a run say of a job of torchtitan: GPUs, batch, sequence, layout, model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import WORLD, JobFacts
from zenith_tune.presets.arguments import FrameworkArguments
from zenith_tune.presets.shared.launched_gpus import job_gpus, pretrain_gpus, run_resources
from zenith_tune.presets.torchtitan.command import (
    FILE_OPTION,
    PRESET,
    Settings,
    file_settings,
    option_settings,
    takes_options,
    titan_run,
)
from zenith_tune.presets.torchtitan.dialect import AC_MODE, FIRST, MODULE, TOKENS, Dialect, dialect_of
from zenith_tune.presets.torchtitan.log import TitanRun
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.units import positive_int

REPLICATE = "parallelism.data_parallel_replicate_degree"
SHARD = "parallelism.data_parallel_shard_degree"
RESHARD = "parallelism.fsdp_reshard_after_forward"
SCHEDULE = "parallelism.pipeline_parallel_schedule"
SIZES = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
}
SEQUENCE_PARALLEL = "parallelism.enable_sequence_parallel"
OWN_SPLITS = ("parallelism.pipeline_parallel_layers_per_stage", "parallelism.module_fqns_per_model_part")
"""A pipeline that is cut by hand."""
EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"
STEPS = "training.steps"
PRECISION = "training.mixed_precision_param"
DEFAULTS: Settings = {
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    TOKENS.micro_batch: 16_384,
    TOKENS.global_batch: -1,
    TOKENS.seq_len: 2048,
    FIRST.pipeline_batch: 1,
    TOKENS.pipeline_batch: 1,
    REPLICATE: 1,
    SHARD: -1,
    RESHARD: "default",
    SCHEDULE: "1F1B",
    **dict.fromkeys(SIZES.values(), 1),
    AC_MODE: "selective",
    PRECISION: "bfloat16",
}
"""torchtitan's own, in every release that is known."""
CATALOG = {"deepseek-v3-671b": "deepseek-v3", "deepseek-v3-16b": "deepseek-v2-lite"}
"""Models that the catalog has under another name than torchtitan."""


@dataclass(frozen=True, kw_only=True)
class TitanArguments(FrameworkArguments):
    """What preset torchtitan takes."""

    gbs: int | None = None
    seq: int | None = None
    mbs_max: int = 64
    steps: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanJob:
    """A job of torchtitan."""

    dialect: Dialect
    num_gpus: int
    num_nodes: int
    settings: Mapping[str, Any]
    """What command and TOML, or a run, set."""
    options: frozenset[str]
    """Those that the command itself has as options."""
    is_known: bool
    """Whether all is known: a configuration in Python is so after a run alone."""
    model: str | None = None
    gpu: str | None = None
    given: TitanArguments = field(default_factory=TitanArguments)

    def own(self, name: str) -> Any:
        return self.settings.get(name, DEFAULTS.get(name))

    @property
    def compiles(self) -> bool:
        return bool(self.own(self.dialect.compile))

    def count(self, name: str) -> int:
        """Return a setting that is a number above 0, or 1."""
        return positive_int(self.own(name)) or 1

    def size(self, name: str) -> int:
        return self.count(SIZES[name])

    @property
    def seq_len(self) -> int:
        return self.given.seq or self.count(self.dialect.seq_len)

    @property
    def batch_ranks(self) -> int:
        return max(self.num_gpus // math.prod(self.size(name) for name in ("tp", "pp", "cp")), 1)

    @property
    def replicas(self) -> int:
        """Copies of the sharded weights; 1 where they are sharded over all ranks, or not sharded at all."""
        return 1 if self.is_unsharded else self.count(REPLICATE)

    @property
    def is_unsharded(self) -> bool:
        """Whether each rank holds all weights."""
        return self.count(REPLICATE) > 1 and self.own(SHARD) == 1

    @property
    def micro_batch(self) -> int:
        """Samples of one pass of a rank."""
        if self.dialect.counts_tokens:
            return self._samples(self.count(self.dialect.micro_batch), self.dialect.micro_batch)
        return self.count(self.dialect.pipeline_batch if self.size("pp") > 1 else self.dialect.micro_batch)

    @property
    def rank_batch(self) -> int:
        """Samples of one rank between two accumulations."""
        if not self.dialect.counts_tokens:
            return self.count(self.dialect.micro_batch)
        return self.micro_batch * (self.count(self.dialect.pipeline_batch) if self.size("pp") > 1 else 1)

    @property
    def global_batch(self) -> int:
        """Samples of a step, which no trial changes."""
        if self.given.gbs:
            return self.given.gbs
        if own := positive_int(self.own(self.dialect.global_batch)):
            return self._samples(own, self.dialect.global_batch) if self.dialect.counts_tokens else own
        return self.rank_batch * self.batch_ranks

    @property
    def splits_itself(self) -> bool:
        """Whether the pipeline is cut by hand, so that it has one size."""
        return any(self.own(name) for name in OWN_SPLITS)

    def _samples(self, tokens: int, name: str) -> int:
        if tokens % self.seq_len:
            problem = f"{name} must be a multiple of {self.dialect.seq_len}, but got {tokens} and {self.seq_len}"
            raise UsageError(problem, hint="change one of them, or give --seq N for the tokens of a sample")
        return tokens // self.seq_len


def read_job(command: str, given: TitanArguments) -> TitanJob:
    """Read a command and its TOML; of a configuration in Python only its name and the options are known."""
    run = titan_run(command)
    if run is None:
        problem = f"{PRESET} tunes a run of torchtitan.train, but the command has none"
        raise UsageError(problem, hint="give `torchrun ... -m torchtitan.train ...`, or ./run_train.sh")
    if not takes_options(command, run):
        problem = f"{run.script} does not pass its arguments on, so that no setting reaches torchtitan"
        raise UsageError(problem, hint='put "$@" at the end of its training command')
    own = option_settings(run.arguments)
    file = own.get(FILE_OPTION)
    dialect = dialect_of(run, has_file=file is not None)
    settings = {**(file_settings(run, str(file)) if file is not None else {}), **own}
    num_gpus = _num_gpus(run, given)
    target = ParsedCommand.of(command).target
    job = TitanJob(
        dialect=dialect,
        num_gpus=num_gpus,
        num_nodes=run_resources(command, run, num_gpus).nodes,
        settings=settings,
        options=frozenset(option_settings([word.value for word in target.words[target.first :]])),
        is_known=file is not None,
        model=given.model or model_name(settings),
        given=given,
    )
    own_layout = Layout(num_gpus=num_gpus, tp=job.size("tp"), pp=job.size("pp"), cp=job.size("cp"))
    if broken := WORLD.reason(JobFacts(), own_layout):
        raise UsageError(f"the job as it is does not run: {broken}", hint="start as many GPUs as its sizes need")
    return job


def model_name(settings: Mapping[str, Any]) -> str | None:
    """Return the catalog's name of the model that a TOML or the name of a configuration says."""
    flavour = settings.get("model.flavor")
    found = f"{settings.get('model.name', 'llama3')}-{flavour}" if flavour else settings.get("config")
    if not isinstance(found, str):
        return None
    name = re.sub(r"[_-]+", "-", found.lower())
    return CATALOG.get(name, name)


def _num_gpus(run: ProgramRun, given: TitanArguments) -> int:
    started = pretrain_gpus(run)
    if not (given.n_gpus or started or "torchrun" in " ".join(run.launcher)):
        return 1
    return job_gpus(PRESET, given.n_gpus, started, option="--nproc-per-node")


def live_job(job: TitanJob, run: TitanRun) -> TitanJob:
    """Return the job as it ran."""
    if not run.settings:
        return replace(job, gpu=run.gpu)
    dialect = job.dialect
    if not dialect.has_file:
        dialect = TOKENS if TOKENS.micro_batch in run.settings else MODULE
    # The run made the steps of a trial.
    settings = {name: value for name, value in run.settings.items() if name != STEPS}
    settings |= {name: value for name, value in job.settings.items() if name == STEPS}
    return replace(job, dialect=dialect, settings=settings, is_known=True, gpu=run.gpu)
