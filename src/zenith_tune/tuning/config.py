"""Everything that one study is made of, resolved and checked once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.gpu_catalog import PRICES_OF, public_price
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator, is_objective_name
from zenith_tune.evaluators.early_stop import EarlyStop
from zenith_tune.evaluators.json_lines import PREFIX
from zenith_tune.evaluators.short_steps import ShortSteps
from zenith_tune.hooks.injection import without_code
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.record.view import StudyHeader
from zenith_tune.runners.base import parallel_trials
from zenith_tune.runners.launch.trackers import TRACKERS_OFF
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.launchers import EVALUATED
from zenith_tune.shell.placeholders import (
    fill_placeholders,
    misspelt_placeholder,
    placeholder_names,
    unknown_placeholder,
)
from zenith_tune.shell.secrets import mask
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.budget import Budget, MemoryLimit, Training, parse_share, parse_size
from zenith_tune.study.files import plain_name
from zenith_tune.study.parameters import Direction
from zenith_tune.study.resources import Resources
from zenith_tune.tuning.options import TuneOptions
from zenith_tune.tuning.place import StudyPlace
from zenith_tune.tuning.watch import Timeouts

TRIAL_FOLDER = "trial_folder"
_HANDING_ON = {
    "sbatch": ("sbatch", "Slurm", "--slurm"),
    "kubectl": ("kubectl", "Kubernetes", "--kubernetes manifest=FILE"),
}
"""Programs that hand a job to a scheduler, with the scheduler and the option that has trials run there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of trials and of fruitless points at which a study stops."""

    n_trials: int | None = None
    consecutive_duplicates: int | None = None
    consecutive_prunes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How much a study may spend to know better."""

    hours: float | None = None
    """Hours of training that it is weighed against; None: a night."""
    is_whole_training: bool = False
    """Whether it is weighed against all steps of the command, where those take longer."""
    confirms: bool = True
    confirms_always: bool = False


PATIENCE = {
    "quick": Patience(hours=1.0, confirms=False),
    "normal": Patience(),
    "thorough": Patience(is_whole_training=True, confirms_always=True),
}


SCRIPT = re.compile(r"\.(?:py|sh)$")
"""A word of a command that names its script."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """One study: what is tuned, how it is searched and measured, where it is kept and when it stops."""

    line: ParsedCommand
    """The user's own command."""
    preset_name: str
    preset: CompletePreset
    preset_args: Mapping[str, Any] = field(default_factory=dict)
    strategy_name: str
    strategy: TuningStrategy
    evaluator: TuningEvaluator
    place: StudyPlace
    resources: Resources = field(default_factory=Resources)
    """The needs of a trial."""
    secrets: tuple[str, ...] = ()
    """Texts that are masked in every file and on the terminal."""
    options: TuneOptions = field(default_factory=TuneOptions)
    words: tuple[str, ...] | None = None
    """The words of the command line that made this, to resume the study with; None where there was no such line."""
    working_folder: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        # A mistake is reported now, not when the study begins.
        for resolve in ("timeouts", "early_stop", "budget", "memory", "num_parallel"):
            getattr(self, resolve)

    @functools.cached_property
    def timeouts(self) -> Timeouts:
        """The limits on a trial's duration."""
        given = self.options
        # A run that takes longer may well have a better value that is no time.
        dynamic = given.timeout_dynamic and self.evaluator.measures_time
        if given.timeout_margin is None:
            return Timeouts(fixed_s=given.timeout, dynamic=dynamic)
        if not given.timeout_dynamic:
            raise UsageError("--timeout-margin goes with --timeout-dynamic", hint="give both")
        return Timeouts(fixed_s=given.timeout, dynamic=dynamic, margin=given.timeout_margin)

    @functools.cached_property
    def early_stop(self) -> EarlyStop | None:
        """The rule that ends a trial early; None where the evaluator reads no steps, or the user wants none."""
        given, percent = self.options.early_stop, self.options.early_precision
        if percent is not None and given is not True:
            raise UsageError("--early-precision goes with --early-stop", hint="leave --no-early-stop out")
        if not given or not self.evaluator.shows_progress:
            return None
        if isinstance(given, EarlyStop):
            return given
        return EarlyStop() if percent is None else EarlyStop(precision=percent / 100)

    @property
    def limits(self) -> Limits:
        """The limits of the search; a strategy that ends by itself needs none."""
        given = self.options
        n_trials = given.n_trials or self.preset.default_trials()
        if self.strategy.ends_by_itself:
            return Limits(n_trials=n_trials)
        return Limits(
            n_trials=n_trials or self.strategy.default_n_trials,
            consecutive_duplicates=given.max_duplicates,
            consecutive_prunes=given.max_prunes,
        )

    @functools.cached_property
    def patience(self) -> Patience:
        """How much the study may spend to know better, by --patience and --no-confirm."""
        stated = PATIENCE[self.options.patience]
        return stated if self.options.confirm else replace(stated, confirms=False)

    @functools.cached_property
    def budget(self) -> Budget:
        """The cost that the study may have, and the training that it is for."""
        given = self.options
        hours = self.patience.hours if given.train_hours is None else given.train_hours
        steps = self.preset.train_steps(self.command) if hours is None and self.patience.is_whole_training else None
        return Budget(
            training=Training(hours=hours, steps=steps),
            gpu_hours=given.gpu_hours,
            max_hours=given.max_hours,
            price=given.price,
        )

    @functools.cached_property
    def memory(self) -> MemoryLimit:
        """The limit on the GPU memory of the best layout."""
        size, share = self.options.max_memory, self.options.headroom
        return MemoryLimit(
            max_bytes=parse_size(size) if isinstance(size, str) else size,
            headroom=parse_share(share) if isinstance(share, str) else share,
        )

    @functools.cached_property
    def num_parallel(self) -> int | None:
        """The number of trials that run side by side; None: as many as there is room for."""
        return parallel_trials(str(self.options.parallel))

    @property
    def command(self) -> str:
        return self.line.text

    @property
    def masked_command(self) -> str:
        return mask(self.command, self.secrets)

    @functools.cached_property
    def _cluster(self) -> ClusterSpec | None:
        """The cluster, where the preset knows it; it may look up the model for that, also on the hub."""
        with contextlib.suppress(UsageError):
            subject = self.preset.subject(self.command)
            if subject is not None:
                return subject.cluster
        return self._named_cluster

    @functools.cached_property
    def _named_cluster(self) -> ClusterSpec | None:
        with contextlib.suppress(UsageError):  # without a model there is no plan, but the GPUs may be known
            return load_cluster(str(self.preset_args["cluster"])) if self.preset_args.get("cluster") else None
        return None

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, where it is known at the start."""
        return "" if self._first_cluster is None else self._first_cluster.name

    @property
    def _first_cluster(self) -> ClusterSpec | None:
        """The cluster as it is known at the start: nothing is looked up unless the strategy or a limit needs it."""
        counts_gpus = self.budget.gpu_hours is not None or self.budget.price is not None
        is_needed = self.memory.headroom is not None or (counts_gpus and self.resources.gpus_per_node is None)
        return self._cluster if self.strategy.plans or is_needed else self._named_cluster

    @property
    def capacity_bytes(self) -> float | None:
        """The memory of one GPU, where it is known."""
        return None if self._cluster is None else float(self._cluster.gpu.memory_bytes)

    @property
    def first_capacity_bytes(self) -> float | None:
        """The memory of one GPU, where it is known at the start."""
        return None if self._first_cluster is None else float(self._first_cluster.gpu.memory_bytes)

    @property
    def num_gpus(self) -> int | None:
        """The GPUs of a trial, where they are known."""
        if self.resources.gpus_per_node is not None:
            return self.resources.nodes * self.resources.gpus_per_node
        return None if self._first_cluster is None else self._first_cluster.num_gpus

    @property
    def priced_budget(self) -> Budget:
        """The budget, with the public price of the cluster's GPUs where the user gives none."""
        if self.budget.price is not None or self._first_cluster is None:
            return self.budget
        return replace(self.budget, price=public_price(self._first_cluster.gpu.name))

    @property
    def machine_name(self) -> str:
        """A name for the kind of machine that trials run on, for what is learned of it."""
        cluster = self._first_cluster
        return plain_name(platform.node() if cluster is None else f"{cluster.gpu.name}-{self.num_gpus or 1}")

    @property
    def header(self) -> StudyHeader:
        """What the study's record is compared by."""
        return StudyHeader(
            preset=self.preset_name,
            args={name: str(value) for name, value in sorted(self.preset_args.items())},
            command=self.masked_command,
            evaluator=self.evaluator.describe(),
            working_folder=str(self.working_folder),
            options=None if self.words is None else [mask(word, self.secrets) for word in self.words],
        )

    @property
    def _reads_pattern(self) -> bool:
        objective = self.options.objective
        return objective is not None and not is_objective_name(objective) and not objective.startswith(PREFIX)

    @property
    def title(self) -> str:
        """The job in one line: its script, and what the preset reads of it."""
        words = self.masked_command.partition(f"{EVALUATED}")[2].split()[1:] or self.masked_command.split()
        script = next((Path(word).name for word in words if SCRIPT.search(word)), None)
        name = script or (self.line.program or self.preset_name).rpartition("/")[2]
        job = self.preset.describe_job(self.masked_command)
        return f"{name}: {job or f'preset {self.preset_name}'}"

    @property
    def runs_baseline(self) -> bool:
        """Whether the user's own command runs first; one that holds placeholders cannot."""
        return self.options.baseline and not placeholder_names(self.command, self.preset.placeholder_names())

    def render(self, params: Mapping[str, Any]) -> str:
        """Return the command that a point stands for."""
        return self.preset.apply_parameters(self.command, params)

    def identify(self, params: Mapping[str, Any]) -> str:
        """Name the run that a point stands for, its command and its files: one name is one run."""
        return self._identity(self.render(params), self.preset.files(params))

    def _identity(self, command: str, files: Mapping[str, str]) -> str:
        own = without_code(files)
        digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:16] if own else ""
        return mask(command, self.secrets) + (f" # files {digest}" if digest else "")

    @functools.cached_property
    def own_identities(self) -> frozenset[str]:
        """Name the runs that are no other than the user's own command: the same text, or the point it stands for."""
        if not self.runs_baseline:
            return frozenset()
        same = {self._identity(self.preset.baseline_command(self.command), self.preset.baseline_files())}
        with contextlib.suppress(UsageError):
            own = self.preset.own_point(self.command)
            same |= set() if own is None else {self.identify(own)}
        return frozenset(same)

    def short_steps(self, params: Mapping[str, Any]) -> ShortSteps | None:
        """Return the steps of fewer micro-batches that a run begins with; None: it has whole steps alone."""
        if self.options.whole_steps or self.early_stop is None or not self.evaluator.reads_short_steps:
            return None
        return self.preset.short_steps(params)

    def with_budget(self, n_trials: int | None) -> StudyConfig:
        """Return the same study with a budget of `n_trials`, where that is given."""
        return self if n_trials is None else replace(self, options=replace(self.options, n_trials=n_trials))

    def with_limits(self, budget: Budget, memory: MemoryLimit) -> StudyConfig:
        """Return the same study under these limits, but for those that it states itself."""
        spent, full = self.budget.or_else(budget), self.memory.or_else(memory)
        options = replace(
            self.options,
            train_hours=spent.training.hours,
            gpu_hours=spent.gpu_hours,
            max_hours=spent.max_hours,
            price=spent.price,
            max_memory=full.max_bytes,
            headroom=full.headroom,
        )
        return replace(self, options=options)

    def to_resume(self) -> StudyConfig:
        """Return the same study for a second call, which continues where the first one stopped."""
        return replace(self, options=replace(self.options, resume=True, retry_failed=False))

    def check_command(self) -> None:
        """Refuse a command with an unknown placeholder, or in which options find no place."""
        first = {name: parameter.grid(1)[0] for name, parameter in self.preset.get_search_space().items()}
        if (handing := _HANDING_ON.get((self.line.program or "").rpartition("/")[2])) is not None:
            program, engine, option = handing
            problem = f"{program} hands the job to {engine} and ends at once, so that there is nothing to measure"
            raise UsageError(problem, hint=f"give {option}, and after -- what the job runs, such as bash job.sh")
        if (misspelt := misspelt_placeholder(self.command, self._placeholders())) is not None:
            name, meant = misspelt
            raise UsageError(f"unknown placeholder {{{name}}}; did you mean {{{meant}}}?")
        if (unknown := unknown_placeholder(self.command, self._placeholders())) is not None:
            known = ", ".join(f"{{{name}}}" for name in sorted(self._placeholders()))
            raise UsageError(f"unknown placeholder {{{unknown}}}", hint=f"write one of {known}, or the value itself")
        fill_placeholders(self.render(first), {TRIAL_FOLDER: str(self.place.folder.path)})

    def check_program(self) -> None:
        """Refuse a command whose program is not there; a dry run does without it."""
        program = self.line.program
        if program is not None and "{" not in program and shutil.which(program) is None:
            raise UsageError(f"the program {program!r} of the training command does not exist or is not executable")

    def warnings(self, of_runner: Sequence[str] = ()) -> list[str]:
        """Return what the user should know before the first trial."""
        found = [*self.preset.warnings(self.command), *self.line_warnings(), *of_runner]
        if self.options.baseline and not self.runs_baseline:
            found.append("your command holds placeholders, so it cannot run by itself: there is no baseline")
        if (self.budget.gpu_hours or self.budget.price) and self.num_gpus is None:
            found.append("the GPUs of a trial are not known, so GPU-hours count one: give --gpus-per-trial")
        is_plain = self.evaluator.direction is Direction.MAXIMIZE or self.evaluator.measures_time
        if self.options.maximize is None and self._reads_pattern and not is_plain:
            found.append("the value of --objective is minimized: give --maximize where more is better")
        if self.memory.headroom is not None and self.capacity_bytes is None:
            until = "only once a trial says how much memory they have"
            found.append(f"the GPUs are not known, so --headroom counts {until}")
        if self.options.timeout_dynamic and not self.timeouts.dynamic:
            found.append(f"--timeout-dynamic ends no trial: no time or speed is measured ({self.evaluator.describe()})")
        return found

    def notes(self, of_runner: Sequence[str] = ()) -> list[str]:
        """Return how the study goes about it."""
        notes = [*self.preset.notes(self.command), *of_runner]
        if EVALUATED in self.command:
            notes.append("trials run the text of your script with another training command; the file itself stays")
        if off := [f"{name}={value}" for name, value in TRACKERS_OFF.items() if name not in os.environ]:
            notes.append(f"trials make no runs in experiment trackers: {', '.join(off)}, unless you set it yourself")
        if self.secrets:
            notes.append("secrets in the command are masked as *** in every file and in the best command")
        if self.budget.price is None and (price := self.priced_budget.price) is not None:
            notes.append(f"a GPU-hour is taken to cost ${price:.2f} (public price, {PRICES_OF}): see --price")
        if self.runs_baseline and (short := self.short_steps({})) is not None:
            numbers = f"{min(short.numbers)} to {max(short.numbers)} of its {short.whole} micro-batches"
            notes.append(f"where Megatron Core allows it, a run begins with steps of {numbers}: see --whole-steps")
        limits = (self.timeouts.describe(), self.early_stop.describe() if self.early_stop else None)
        return [*notes, *(limit for limit in limits if limit)]

    def line_warnings(self) -> list[str]:
        """Return what may keep the options of trials from having an effect, but where placeholders stand for all."""
        searched = [name for name, axis in self.preset.get_search_space().items() if len(axis.grid(2)) > 1]
        left = [name for name in searched if name not in placeholder_names(self.command, searched)]
        return self.line.warnings(left[:2]) if left else []

    def _placeholders(self) -> set[str]:
        return {*self.preset.placeholder_names(), TRIAL_FOLDER}
