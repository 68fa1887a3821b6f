"""A run that is diagnosed: model, cluster, job and layout, as its command tells them, with what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from zenith_tune.constructor_args import construct, typed
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.doctor.measured import Measured
from zenith_tune.doctor.run_origin import RunOrigin
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.base import TuningPreset
from zenith_tune.presets.megatron.command import runs_ms_swift
from zenith_tune.presets.megatron_lm.job import Given, read_job
from zenith_tune.presets.megatron_lm.preset import MegatronLmPreset
from zenith_tune.presets.megatron_lm_subject import subject_of
from zenith_tune.presets.recognition import recognised_preset
from zenith_tune.presets.unasked_size import UnaskedSize
from zenith_tune.registry import PresetRegistry
from zenith_tune.shell import CommandLine

MEGATRON, MEGATRON_LM = "megatron", "megatron-lm"
OF_MEGATRON_LM = ("n_gpus", "gbs", "model", "vocab")
EMITTED = {name: name for name in ("deepspeed", "accelerate")} | {MEGATRON_LM: "megatron", MEGATRON: "megatron"}
"""The format of `plan --emit` that a preset's runs are written in."""
WORDS = {
    "preset megatron-lm": "the doctor",
    "--args cluster=": "--cluster ",
    "give cluster=": "give --cluster ",
    ", or choose another --preset": "",
}
"""What presets say, and what that means here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedRun:
    """Hold what a diagnosis needs to know of a run."""

    subject: PlanSubject
    layout: Layout
    measured: Measured = field(default_factory=Measured)
    recompute_modules: tuple[str, ...] = ()
    origin: RunOrigin = field(default_factory=RunOrigin)
    what: str = "the command"
    """Which run it is, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Hold what the user says beside the run."""

    preset: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None

    @property
    def all_args(self) -> dict[str, Any]:
        """The preset's arguments, the cluster among them."""
        return {**self.args, **({"cluster": self.cluster} if self.cluster is not None else {})}

    def origin(self, emit: str, unasked: Iterable[UnaskedSize] = ()) -> RunOrigin:
        """Return how a run became known by what was said."""
        model, cluster = (str(self.all_args.get(name) or "") for name in ("model", "cluster"))
        return RunOrigin(model=model, cluster=cluster, emit=emit, unasked=tuple(unasked))


def from_command(command: str, told: Told) -> DiagnosedRun:
    """Read the run that a command stands for."""
    with in_words_of_the_doctor():
        name = told.preset or recognised_preset(command)
        if name == MEGATRON_LM:
            return megatron_lm_run(command, told)
        if name == MEGATRON:
            from zenith_tune.doctor.megatron_run import megatron_run

            return megatron_run(command, told)
        preset = made_preset(name, told.all_args)
        preset.bind(command)
        point = preset.own_point(command)
        if point is None:
            law = f"preset {name} cannot tell the layout that the command has"
            unasked = [f"{each.cure}, as {each.finding}" for each in preset.unasked_sizes(command)]
            cures = [*unasked, "give the folder of a study, whose trials tell theirs"]
            raise UsageError(f"{law}: {'; or '.join(cures)}")
        run = run_of_point(preset, name, command, point)
        return replace(run, origin=told.origin(emitted(name, command), preset.unasked_sizes(command)))


@contextmanager
def in_words_of_the_doctor() -> Iterator[None]:
    """Let what a preset refuses be told with the options that the doctor has."""
    try:
        yield
    except UsageError as error:
        text = str(error)
        for of_the_preset, of_the_doctor in WORDS.items():
            text = text.replace(of_the_preset, of_the_doctor)
        raise UsageError(text) from None


def megatron_lm_run(command: str, told: Told) -> DiagnosedRun:
    """Read a Megatron-LM command; unlike a preset, also one that no option could be written into."""
    args = typed(MegatronLmPreset, told.all_args, f"preset {MEGATRON_LM}")
    job = read_job(command, Given(**{name: args[name] for name in OF_MEGATRON_LM if name in args}))
    subject = subject_of(job, args.get("cluster"))
    modules = _listed(job.args.line, "--recompute-modules")
    origin = told.origin(emitted(MEGATRON_LM, command))
    return DiagnosedRun(subject=subject, layout=job.start, recompute_modules=modules, origin=origin)


def emitted(preset: str, command: str) -> str:
    """Return the format that writes the layouts of a preset's command; nothing where there is none."""
    is_swift = preset == MEGATRON and runs_ms_swift(command)
    return "ms-swift" if is_swift else EMITTED.get(preset, "")


def _listed(line: CommandLine, option: str) -> tuple[str, ...]:
    """Return the words that follow an option, up to the next one."""
    words = line.text.replace(f"{option}=", f"{option} ").split()
    if option not in words:
        return ()
    return tuple(itertools.takewhile(lambda word: not word.startswith("-"), words[words.index(option) + 1 :]))


def run_of_point(preset: TuningPreset, name: str, command: str, params: Mapping[str, Any]) -> DiagnosedRun:
    """Return the run of one point of a preset's space."""
    subject, layout = preset.subject(command), preset.planned_layout(command, params)
    if subject is None or layout is None:
        raise UsageError(f"preset {name} knows no layouts, so that nothing can be reckoned: diagnose another command")
    kind, _, module = str(params.get("recompute", "")).partition("/")
    modules = (module,) if kind == "selective" and module else ()
    return DiagnosedRun(subject=subject, layout=layout, recompute_modules=modules)


def made_preset(name: str, args: Mapping[str, Any]) -> TuningPreset:
    """Return a preset with its arguments."""
    return construct(PresetRegistry.get(name), args, f"preset {name}")
