"""Pre-training with Megatron-LM: all that is needed is read from the command that the user already has."""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.megatron.args import MOST, is_local
from zenith_tune.errors import CommandError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.short_steps import ShortSteps
from zenith_tune.hooks.injection import HOOK_PATH, hook_events, hook_files
from zenith_tune.hooks.packages import FUSED_GRADIENTS, FUSED_SOFTMAX
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.arguments import FrameworkArguments
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever, lever_label
from zenith_tune.presets.megatron.job import (
    FULLY_SHARDED,
    MAX_GPUS,
    PRESET,
    MegatronJob,
    MegatronLmOverrides,
    at_most,
    read_job,
    subject_of,
    unread_job,
)
from zenith_tune.presets.megatron.levers.declaration import Situation
from zenith_tune.presets.megatron.levers.offered import LEVERS, NAMES, lever_options, levers_for, logged_levers
from zenith_tune.presets.megatron.options import LOG_INTERVAL, dumped_options, dumped_sizes
from zenith_tune.presets.megatron.rules import OVERLAPS
from zenith_tune.presets.megatron.space import (
    DEFAULT,
    MODULES,
    STAGES,
    MegatronLmSpace,
    PointSpace,
    SearchLimits,
    search_names,
)
from zenith_tune.presets.megatron.version import version_note
from zenith_tune.presets.megatron.written import (
    SET_ONLY,
    WRITTEN,
    measured_command,
    refuse_unwritable,
    routing_notes,
    short_steps,
    wanted_switches,
    written_command,
)
from zenith_tune.presets.shared.launched_gpus import run_resources
from zenith_tune.registry import keywords_of
from zenith_tune.shell import ParsedCommand
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources
from zenith_tune.units import whole

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable


APEX = (FUSED_GRADIENTS, FUSED_SOFTMAX)
"""What is built with Apex."""


def installed(log: str) -> dict[str, bool]:
    """Return which packages are there and which are not, as far as a log says; one process that has it is enough."""
    found: dict[str, bool] = {}
    for event in hook_events(log):
        packages = event.get("packages")
        for name, is_there in packages.items() if isinstance(packages, dict) else ():
            found[name] = found.get(name, False) or is_there is True
    # What Megatron warns of when it starts without it.
    if "Apex is not installed" in log or "Apex are not installed" in log:
        found = {**dict.fromkeys(APEX, False), **found}
    return found


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def job_notes(space: MegatronLmSpace) -> list[str]:
    """Return one line for each thing worth knowing."""
    job = space.job
    notes = [what_was_read(job), version_note(job.version)]
    notes.append(f"searched: {', '.join(space.open_names) or 'nothing, there is one layout'}")
    return notes + _log(job) + routing_notes(job)


def job_warnings(space: MegatronLmSpace) -> list[str]:
    """Return one line for each thing that the user may want to change."""
    job = space.job
    notes = _hidden(job)
    if option := job.args.first("--rampup-batch-size", "--step-batch-size-schedule"):
        notes.append(f"{option} in your command changes the batch as it trains: a trial measures its beginning alone")
    if option := job.args.first("--save", "--load"):
        notes.append(f"{option} stays as it is in your command: trials use the checkpoints there; better leave it out")
    is_set = CONNECTIONS in os.environ or (job.run is not None and CONNECTIONS in job.run.variables)
    if not is_set and any(value != 1 for name in ("tp", "cp") for value in space.choices[name]):
        notes.append(
            f"Megatron asks for {CONNECTIONS}=1 with tp or cp above 1 before Blackwell: set it for the command"
        )
    return notes


def what_was_read(job: MegatronJob) -> str:
    """Return the model and the job in a few words."""
    model, at = job.model, job.start
    assert model is not None
    words = [model.name, f"{model.num_layers} layers", f"hidden {model.hidden}"]
    if model.num_experts:
        words.append(f"{model.num_experts} experts")
    words += [f"sequence {job.job.seq_len}", f"batch {at.global_batch}"]
    words += [f"{at.num_gpus} GPU{'s' * (at.num_gpus > 1)}", job.job.precision]
    words += ["no Transformer Engine"] * is_local(job.args)
    where = f"{job.run.script}" if job.run is not None and job.run.script else "your command"
    return f"read from {where}: {', '.join(words)}"


def _hidden(job: MegatronJob) -> list[str]:
    if job.run is None:
        return []
    where, notes = job.run.script or "your command", []
    switches = {option for options in WRITTEN.values() for option in options if option not in SET_ONLY}
    if fixed := [option for option in dict.fromkeys(job.run.doubtful) if option in switches]:
        options = " and ".join(fixed)
        notes.append(f"{where} gives {options} by a condition that is not followed here: no trial can take that away")
    elif job.run.extended:
        names = " and ".join(job.run.extended)
        notes.append(f"{where} may add to {names} under a condition that is not followed here")
    if job.run.is_guarded:
        notes.append(
            f"{where} runs {job.run.program} under a condition that is not followed here: is it the run meant?"
        )
    return notes


def _log(job: MegatronJob) -> list[str]:
    interval = job.args.text(LOG_INTERVAL)
    if interval is not None and whole(interval) == 1:
        return []
    if job.takes_options:
        return [f"trials run with {LOG_INTERVAL} 1, so that they can end early; the best command keeps your own"]
    said = f"every {interval[:20]} iterations" if interval is not None else "every 100 iterations"
    return [f"your command logs {said}: with {LOG_INTERVAL} 1 a trial is sooner over"]


SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")
REPLACED = {"zero": {"fsdp", "torch_fsdp2"}, "recompute": {MODULES}}
"""Levers that take the place of what a point says."""


P = TypeVar("P", bound=PointSpace)
A = TypeVar("A", bound=FrameworkArguments)


class MegatronFamily(FrameworkPreset[P, A]):
    """What the presets of Megatron's commands share: points that are made many at a time, and how a run is measured."""

    def placeholder_names(self) -> set[str]:
        return {*super().placeholder_names(), "gbs", "n_gpus"}

    def points(self) -> Iterator[Params]:
        return self._space.points()

    def tables(self, command: str) -> Iterator[tuple[LayoutBatch, PointTable]] | None:
        return ((self._planned_layouts(command, table), table) for table in self._space.tables())

    @abstractmethod
    def _planned_layouts(self, command: str, table: PointTable) -> LayoutBatch:
        """Return the layouts of rows of points, with all that the command says of them."""

    def decisive(self) -> tuple[str, ...]:
        return ("tp", "pp", "mbs")


@dataclass(frozen=True, kw_only=True)
class MegatronLmArguments(MegatronLmOverrides, FrameworkArguments):
    """What preset megatron-lm takes."""

    mbs_max: int = 16
    tp_max: int = 64


@PresetRegistry.register("megatron-lm")
class MegatronLmPreset(MegatronFamily[MegatronLmSpace, MegatronLmArguments]):
    """Tune parallel sizes, the micro-batch and recomputation of a command that runs one of Megatron-LM's pretrain_*.py.

    Model, sequence, batch, precision and GPUs are read from the command; `model` is a name of the catalog, a
    config.json or a Hugging Face id, and `vocab` the size of a tokenizer that cannot be looked up. Axes that `search`
    does not list stay as they are in the command. Mixtures of experts are measured with balanced routing, or with
    `routing=as-is` by the router of the command.

    >>> preset = MegatronLmPreset(cluster="h100x8")
    >>> preset.bind("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --swiglu "
    ...             "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 16 --bf16")
    >>> preset.get_search_space()["tp"]
    CategoricalParameter(choices=(1, 2, 4, 8))
    """

    title, declared, most_grid_points = PRESET, LEVERS, 0

    @keywords_of(MegatronLmArguments)
    def __init__(self, given: MegatronLmArguments) -> None:
        super().__init__(given)
        for name in ("n_gpus", "gbs", "vocab", "mbs_max", "tp_max"):
            at_most(name, getattr(given, name) or 1, MAX_GPUS if name == "n_gpus" else MOST)
        search_names(given.search)
        self._limits = SearchLimits(search=given.search, tp_max=given.tp_max, mbs_max=given.mbs_max)
        self._unread: MegatronLmSpace | None = None
        self._packages: dict[str, bool] = {}
        """Which optional packages are installed where the user's command runs, as far as its log says."""

    def bind(self, command: str) -> None:
        space = self._read(command)
        names = list(space.open_names)
        if self._given.gbs is not None and self._given.gbs != space.job.args.count("--global-batch-size"):
            names.append("gbs")
        if MODULES in space.searched:
            names.append(MODULES)
        refuse_unwritable(command, space.job, names)
        self._bind_space(space)

    def continue_with(self, recorded: Mapping[str, Sequence[Value]]) -> None:
        if self._bound is not None and recorded and recorded.keys() <= STAGES.keys():
            self._bind_space(MegatronLmSpace(self._bound.job, self._limits, recorded=recorded))

    def _planned_layouts(self, command: str, table: PointTable) -> LayoutBatch:
        return self._space.planned_layouts(table)

    def planned_layout(self, command: str, params: Mapping[str, Value]) -> Layout:
        """Return the layout of a point; with levers, which may recompute or shard otherwise, that of its command."""
        space = self._of(command)
        layout = space.planned_layout(params)
        if params.keys() <= space.choices.keys():
            return layout
        final = read_job(self.apply_parameters(command, params), self._given)
        at, zero = final.start, FULLY_SHARDED if final.is_fully_sharded else final.start.zero
        return replace(layout, zero=zero, recompute=at.recompute, recompute_layers=at.recompute_layers)

    def tries(self, layout: Layout) -> bool:
        return self._usual_space.tries(layout)

    @functools.cached_property
    def _usual_space(self) -> MegatronLmSpace:
        """What is searched where no fewer axes are asked for."""
        usual = replace(self._limits, search=f"{DEFAULT}+{self._limits.search}")
        return MegatronLmSpace(self._space.job, usual)

    def train_steps(self, command: str) -> int | None:
        args = self._of(command).job.args  # those of a script that is run by `bash train.sh`, too
        samples, batch = args.text("--train-samples"), args.text("--global-batch-size")
        if samples and batch and whole(samples) and whole(batch):
            return (whole(samples) or 0) // (whole(batch) or 1)
        return whole(args.text("--train-iters") or "")

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        space = self._space
        plain = {name: value for name, value in params.items() if name in space.choices}
        replaced = lever_options(space.job, params)
        switches = wanted_switches(space.job, space.layout(params), plain)
        kept = {option: value for option, value in switches.items() if option not in replaced}
        dumped = dumped_options(kept, tp=int(params["tp"]))
        return dumped_sizes(params) | dumped | logged_levers(space.job, params)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        space = self._of(command)
        if not space.job.takes_options:
            return []
        at = Situation(job=space.job, layout=space.layout(params), subject=self._known_subject)
        found = [each for each in levers_for(at, ParsedCommand.of(command)) if each.name not in space.searched]
        return self._levers.offered(found, at, self._packages)

    def own_point(self, command: str) -> Params | None:
        space = self._of(command)
        point = space.own_point()
        return point if all(space.parameters()[name].contains(value) for name, value in point.items()) else None

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the options set, or with its placeholders such as {tp} and {gbs} filled."""
        space = self._of(command)
        return written_command(command, space.job, space.layout(params), params)

    def baseline_command(self, command: str) -> str:
        """Return the user's own command with the hook that prints which packages it has, where it takes a variable."""
        try:
            return ParsedCommand.of(command).started.with_path("PYTHONPATH", HOOK_PATH)
        except CommandError:
            return command

    def baseline_files(self) -> dict[str, str]:
        return hook_files({"packages": {}})

    def read_baseline(self, log: str) -> list[str]:
        """Learn which packages levers can count on; what that rules out stands in the report."""
        self._packages = installed(log)
        return []

    def trial_command(self, command: str) -> str:
        """Return the command as it is measured, where options can be added to it."""
        return measured_command(command, self._space.job)

    def short_steps(self, params: Mapping[str, Value]) -> ShortSteps | None:
        job = self._space.job
        layout = self._space.layout(params) if params else job.start
        return short_steps(job, layout, params, self.train_steps(""))

    def resources(self, command: str) -> Resources:
        job = self._of(command).job
        return run_resources(command, job.run, job.start.num_gpus)

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words; what is 1, or none, goes without saying."""
        replaced = {name for name, levers in REPLACED.items() if levers & params.keys()}
        words = [f"{name.upper()}{params[name]}" for name in SIZES if params[name] != 1]
        if "zero" in params.keys() - replaced:
            words.append(f"Z{params['zero']}")
        words.append(f"mbs{params['mbs']}")
        if "sequence_parallel" in params and params["tp"] != 1:
            words.append("SP" if params["sequence_parallel"] else "no SP")
        if params["recompute"] != "none" and "recompute" not in replaced:
            words.append(str(params["recompute"]))
        if params.get("overlap", "none") != "none":
            words.append(f"overlap {params['overlap']}")
        words += [f"{name[:2].upper()} overlap" for name in ("tp_overlap", "ep_overlap") if params.get(name)]
        words += [lever_label(name, params[name]) for name in NAMES if name in params and name not in OVERLAPS]
        return " ".join(words)

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_tune.strategies.guided.strategy import GuidedStrategy

        return GuidedStrategy()

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

        if self._bound is None:
            return MegatronEvaluator(gbs=self._given.gbs)
        job = self._bound.job
        return MegatronEvaluator(gbs=job.start.global_batch, seq=job.job.seq_len or None)

    def warnings(self, command: str) -> list[str]:
        return job_warnings(self._of(command))

    def notes(self, command: str) -> list[str]:
        return [*job_notes(self._of(command)), *self._lever_notes(command)]

    def _lever_notes(self, command: str) -> list[str]:
        """Return which levers may be tried: those of the command's own layout, and of any that differs in one value."""
        space, line = self._of(command), ParsedCommand.of(command)
        if not space.job.takes_options:
            return []
        # Not only those that can be predicted here, nor at points that keep every rule.
        situations = [Situation(job=space.job, layout=space.layout(point)) for point in space.near_points()]
        near = {lever.name for at in situations for lever in levers_for(at, line)} - space.searched
        return self._levers.note(LEVERS, near)

    @property
    def _space(self) -> MegatronLmSpace:
        """What is searched: of the command that the preset is bound to, or else of what is given."""
        if self._bound is not None:
            return self._bound
        if self._unread is None:
            self._unread = MegatronLmSpace(unread_job(self._given), self._limits)
        return self._unread

    def _of(self, command: str) -> MegatronLmSpace:
        return self._bound or self._read(command)

    def subject(self, command: str) -> PlanSubject:
        if self._bound is not None:
            return super().subject(command)
        return subject_of(self._read(command).job, self._given.cluster, self._given.topology)

    def _looked_up(self) -> PlanSubject:
        return subject_of(self._space.job, self._given.cluster, self._given.topology)

    def _read(self, command: str) -> MegatronLmSpace:
        return MegatronLmSpace(read_job(command, self._given), self._limits)
