"""A run that is diagnosed: model, cluster, job and layout by its command, and what was measured."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.megatron.args import MegatronArgs, shown
from zenith_tune.describe.megatron.pipeline import LAYOUT, chunks_of, own_pipeline
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.doctor.causes.cause import Cause
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.evaluators.failures.failures import FailedAllocation
from zenith_tune.evaluators.steps import PhaseFinding
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.base import PresetRegistry, recognised
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.megatron.documented.command import runs_ms_swift
from zenith_tune.presets.megatron.documented.dialect import switched_on
from zenith_tune.presets.megatron.documented.preset import SELECTIVE_FLAG, MegatronPreset, megatron_subject
from zenith_tune.presets.megatron.job import MegatronLmOverrides, read_job, subject_of
from zenith_tune.presets.megatron.levers.declaration import MegatronLever, Situation
from zenith_tune.presets.megatron.levers.offered import levers_for
from zenith_tune.presets.megatron.options import CHUNKS, OPTIONS, PER_CHUNK, VIRTUAL
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.presets.megatron.space import MegatronLmSpace, SearchLimits
from zenith_tune.presets.parts import CompletePreset, ImplicitDefault, completed
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.registry import construct, typed
from zenith_tune.shell import ParsedCommand
from zenith_tune.units import whole

if TYPE_CHECKING:
    from zenith_tune.estimates.calibration import Calibration

MEGATRON, MEGATRON_LM = "megatron", "megatron-lm"
OF_MEGATRON_LM = ("n_gpus", "gbs", "model", "vocab")
EMITTED = {name: name for name in ("deepspeed", "accelerate")} | {MEGATRON_LM: "megatron", MEGATRON: "megatron"}
"""The format of `plan --emit` for each preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured figures of a run; None where neither log nor trial has them."""

    step_s: float | None = None
    peak_bytes: float | None = None
    """Peak bytes that any rank's allocator reserved."""
    out_of_memory: bool = False
    cause: str = ""
    """Why the run failed, in one line; empty where it did not."""
    causes: tuple[Cause, ...] = ()
    """Causes that the log shows."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase of a step, the longest first, where it has several."""
    phase_findings: tuple[PhaseFinding, ...] = ()
    """What to change in them, the largest gain first."""

    @property
    def is_sound(self) -> bool:
        """Whether the run neither failed nor waited."""
        return not self.causes and not self.out_of_memory

    @property
    def capacity_bytes(self) -> float | None:
        """Bytes of the GPU that ran out of memory, where PyTorch's message has them."""
        return FailedAllocation.of(self.cause).capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterRun:
    """A run that a study measured to be faster than another one."""

    name: str
    label: str
    step_s: float
    command: str = ""
    """What starts its command; empty where the study left none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Where a run comes from, and what its study knows besides the layout."""

    model: str = ""
    """The model that the user named by `model=`; empty: that of the command or the log."""
    cluster: str = ""
    """The cluster that the user named; empty: this machine."""
    topology: str = ""
    """The file that says how the GPUs of its nodes are linked; empty: as in the cluster's."""
    emit: str = ""
    """The format of `plan --emit` that writes a layout for the framework; empty: none."""
    unasked: tuple[ImplicitDefault, ...] = ()
    """Sizes that the run has by default, although larger ones were probably meant."""
    tried: frozenset[Layout] = frozenset()
    """Other layouts that its study has run, which are not advised."""
    faster: FasterRun | None = None
    """The fastest run of its study, where that is another one."""
    memory_limit_bytes: float | None = None
    """Bytes of a GPU that its study may use; None: all."""
    tries: Callable[[Layout], bool] = lambda layout: True
    """Whether a study of the run may try a layout; others are not advised for speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedRun:
    """A run to diagnose."""

    subject: PlanSubject
    layout: Layout
    measured: Measured = field(default_factory=Measured)
    recompute_modules: tuple[str, ...] = ()
    origin: RunOrigin = field(default_factory=RunOrigin)
    levers: tuple[Lever, ...] = ()
    """Performance settings that it leaves off and could turn on without being allowed to."""
    what: str = "the command"
    """The name of the run for people."""
    calibration: Calibration | None = None
    """The calibration that its study began with; None: the package's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedRun:
    """A run whose model, cluster or layout is not known."""

    measured: Measured
    what: str
    reason: str
    """Why it cannot be planned, and what to give for a plan."""
    value: str = ""
    """What its study measured of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHints:
    """The user's own description of a run."""

    preset: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None

    @property
    def all_args(self) -> dict[str, Any]:
        """The preset's arguments, including the cluster."""
        return {**self.args, **({"cluster": self.cluster} if self.cluster is not None else {})}

    def origin(self, emit: str, unasked: Iterable[ImplicitDefault] = ()) -> RunOrigin:
        """Return the origin of a run that the user described so."""
        model, cluster, topology = (str(self.all_args.get(name) or "") for name in ("model", "cluster", "topology"))
        return RunOrigin(model=model, cluster=cluster, topology=topology, emit=emit, unasked=tuple(unasked))


STAND_INS = {"model": "llama3-8b", "cluster": "h100x64", "seq": 2048}
"""What a command may leave open, by the names of options, and values with which to see what else it does."""


def from_command(command: str, hints: RunHints) -> DiagnosedRun:
    """Read the run of a command; what it leaves open is asked for at once."""
    missing: list[str] = []
    first: UsageError | None = None
    while True:
        known = {**hints.all_args, **{name: STAND_INS[name] for name in missing}}
        try:
            found = _from_command(command, replace(hints, args=known, cluster=None) if missing else hints)
        except UsageError as error:
            first = first or error
            asked = [name for name in STAND_INS if f"--{name} " in error.hint and name not in known]
            missing += asked[:1]
            if asked:
                continue
        if first is None:
            return found
        if len(missing) < 2:
            raise first
        named = " ".join(f"--{name} {STAND_INS[name]}" for name in missing)
        raise UsageError(f"{first.problem}, and more is not known", hint=f"give for instance {named}")


def _from_command(command: str, hints: RunHints) -> DiagnosedRun:
    name, command = (hints.preset, command) if hints.preset else recognised(command)
    if name == MEGATRON_LM:
        return megatron_lm_run(command, hints)
    if name == MEGATRON:
        return megatron_run(command, hints)
    preset = made_preset(name, hints.all_args)
    preset.bind(command)
    return run_of_preset(preset, name, command, hints)


def run_of_preset(preset: CompletePreset, name: str, command: str, hints: RunHints) -> DiagnosedRun:
    """Return the run of the command that a preset is bound to."""
    point = preset.own_point(command)
    if point is None:
        problem = f"preset {name} cannot read the layout of the command"
        unasked = [f"{each.hint}, as {each.finding}" for each in preset.implicit_defaults(command)]
        ways = [*unasked, "give the folder of a study, whose trials have theirs"]
        raise UsageError(problem, hint="; or ".join(ways))
    run = run_of_point(preset, name, command, point)
    return replace(run, origin=hints.origin(emitted(name, command), preset.implicit_defaults(command)))


def megatron_lm_run(command: str, hints: RunHints, dumped: Mapping[str, str] | None = None) -> DiagnosedRun:
    """Read a Megatron-LM command, also one that options cannot be written into.

    `dumped` are the arguments by its own log, which show the levers that are on.
    """
    args = typed(MegatronLmPreset, hints.all_args, f"preset {MEGATRON_LM}")
    job = read_job(command, MegatronLmOverrides(**{name: args[name] for name in OF_MEGATRON_LM if name in args}))
    subject = subject_of(job, args.get("cluster"))
    words = job.args.line.text.replace("--recompute-modules=", "--recompute-modules ").split()
    place = words.index("--recompute-modules") + 1 if "--recompute-modules" in words else len(words)
    modules = tuple(itertools.takewhile(lambda word: not word.startswith("-"), words[place:]))
    limits = SearchLimits(**{name: args[name] for name in ("tp_max", "mbs_max") if name in args})
    origin = replace(hints.origin(emitted(MEGATRON_LM, command)), tries=MegatronLmSpace(job, limits).tries)
    at = Situation(job=job, layout=job.start, subject=subject)
    off = [each for each in levers_for(at, ParsedCommand.of(command)) if not _is_dumped(each, dumped or {})]
    levers = tuple(lever for each in off if (lever := each.lever(at)) is not None and not lever.is_left_out)
    return DiagnosedRun(subject=subject, layout=job.start, recompute_modules=modules, origin=origin, levers=levers)


def _is_dumped(lever: MegatronLever, dumped: Mapping[str, str]) -> bool:
    """Tell whether a run's own arguments say that a lever is on."""
    return bool(dumped) and all(dumped.get(name) == str(value) for name, value in lever.logged.items())


def emitted(preset: str, command: str) -> str:
    """Return the format that writes the layouts of a preset's command; empty where there is none."""
    is_swift = preset == MEGATRON and runs_ms_swift(command)
    return "ms-swift" if is_swift else EMITTED.get(preset, "")


def run_of_point(preset: CompletePreset, name: str, command: str, params: Mapping[str, Any]) -> DiagnosedRun:
    """Return the run of one point of a preset's space."""
    subject, layout = preset.subject(command), preset.planned_layout(command, params)
    if subject is None or layout is None:
        raise UsageError(f"preset {name} knows no layouts, so that nothing can be estimated")
    levers = [lever for lever in preset.levers(command, params) if not lever.is_left_out and lever.name not in params]
    modules = modules_of_point(params)
    return DiagnosedRun(subject=subject, layout=layout, recompute_modules=modules, levers=tuple(levers))


def modules_of_point(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the module of selective recomputation that a point names, by a lever or in its layout."""
    kind, _, module = str(params.get("recompute", "")).partition("/")
    named = str(params.get("modules") or (module if kind == "selective" else ""))
    return (named,) if named else ()


def made_preset(name: str, args: Mapping[str, Any]) -> CompletePreset:
    """Return a preset with its arguments."""
    return completed(construct(PresetRegistry.get(name), args, f"preset {name}"))


OF_ANOTHER_RELEASE = (TypeError, ValueError, LookupError, ArithmeticError, UsageError)
"""Exceptions that a preset may raise for points of another release."""


def tried_layouts(
    preset: CompletePreset, command: str, points: Iterable[Mapping[str, Any]], *, but: Layout
) -> frozenset[Layout]:
    """Return the layouts of the points that a preset understands, other than `but`; an empty one is the command's."""
    found: set[Layout] = set()
    for params in points:
        try:
            point = params or preset.own_point(command)
            layout = preset.planned_layout(command, point) if point else None
            found |= {layout} if layout not in (None, but) else set()
        except OF_ANOTHER_RELEASE:
            continue
    return frozenset(found)


PRESET = "preset megatron"
RECOMPUTE = ("full", "selective", "none")
SWIFT_BATCH, SWIFT_MICRO_BATCH, SWIFT_RECOMPUTE = 16, 1, "selective"
"""ms-swift's documented defaults; Megatron-LM itself recomputes nothing by default."""


def megatron_run(command: str, hints: RunHints) -> DiagnosedRun:
    """Read a run from the options of its command; `--args` has the rest, and takes precedence."""
    try:
        said = MegatronArgs(ParsedCommand.of(command))
        defaults = _stated_by(command, said)
    except CommandError as error:
        raise UsageError(f"{PRESET} cannot read the layout of the command ({error})", hint="write it out") from None
    args = typed(MegatronPreset, hints.all_args, PRESET, defaults={"n_gpus": 0, "gbs": 0, **defaults})
    for name, option in (("n_gpus", "--nproc-per-node or NPROC_PER_NODE"), ("gbs", OPTIONS["gbs"])):
        if name not in defaults and name not in hints.all_args:
            problem = f"{PRESET} must know {name}, but the command has no {option}"
            raise UsageError(problem, hint=f"give --{name.removeprefix('n_')} 8")
    start = Layout(num_gpus=args["n_gpus"], global_batch=args["gbs"])
    asked = {name: args.get(name) for name in ("model", "cluster", "seq")}
    subject = megatron_subject(command, n_gpus=start.num_gpus, **asked)
    layout = _layout(said, start, subject.model, is_swift=runs_ms_swift(command))
    is_sharded, sp = switched_on(command)
    layout = replace(layout, zero=int(is_sharded), sequence_parallel=layout.tp > 1 and sp)
    own = own_pipeline(said, subject.model.num_layers, pp=layout.pp, vp=layout.vp)
    subject = replace(subject, job=replace(subject.job, framework=replace(subject.job.framework, own_pipeline=own)))
    return DiagnosedRun(subject=subject, layout=layout, origin=hints.origin(emitted(MEGATRON, command)))


def _stated_by(command: str, said: MegatronArgs) -> dict[str, Any]:
    """Return the preset's arguments that the command itself states."""
    is_swift = runs_ms_swift(command)
    # What ms-swift's launcher reads.
    variables = {**os.environ, **said.line.assignments()}
    per_node, nodes = (whole(variables.get(name, "")) for name in ("NPROC_PER_NODE", "NNODES"))
    found: dict[str, Any] = {
        "n_gpus": started_gpus(command) or (per_node * (nodes or 1) if per_node else None),
        "gbs": said.count(OPTIONS["gbs"]) or (SWIFT_BATCH if is_swift else None),
        "model": said.text("--model") if is_swift else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _layout(said: MegatronArgs, start: Layout, model: ModelSpec, *, is_swift: bool) -> Layout:
    tp, pp, cp, ep = (said.count(OPTIONS[name]) or 1 for name in ("tp", "pp", "cp", "ep"))
    mbs = said.count(OPTIONS["mbs"]) or (SWIFT_MICRO_BATCH if is_swift else None)
    if mbs is None:
        problem = f"{PRESET} must know the micro-batch, but the command has no {OPTIONS['mbs']}"
        raise UsageError(problem, hint="add it to the command")
    # By default Megatron-LM splits experts as it splits the dense layers, and ms-swift does not split them.
    etp = said.count(OPTIONS["etp"]) or (tp if model.num_experts and not is_swift else 1)
    vp = _chunks(said, pp, model.num_layers)
    layout = replace(start, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, vp=vp, micro_batch=mbs)
    granularity = said.text(OPTIONS["recompute_granularity"]) or (SWIFT_RECOMPUTE if is_swift else "none")
    if said.has(SELECTIVE_FLAG):
        granularity = "selective"
    if granularity not in RECOMPUTE:
        problem = f"{OPTIONS['recompute_granularity']} must be full or selective, but is {shown(granularity)}"
        raise UsageError(f"{problem}: correct it in the command")
    if granularity != "full":
        return replace(layout, recompute=granularity)
    method = said.text(OPTIONS["recompute_method"]) or "uniform"
    layers = said.count(OPTIONS["recompute_num_layers"]) or 1
    return replace(layout, recompute=f"full/{method}", recompute_layers=layers)


def _chunks(said: MegatronArgs, pp: int, num_layers: int) -> int:
    """Return the model chunks per pipeline rank."""
    if written := said.text(LAYOUT):
        return max(len(chunks_of(written)) // pp, 1)
    if chunks := said.count(CHUNKS) or said.count(VIRTUAL):
        return chunks
    per_chunk = said.count(PER_CHUNK)
    return max(num_layers // (pp * per_chunk), 1) if per_chunk else 1
