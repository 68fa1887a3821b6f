"""The user's command as a job whose ranks can be run one by one: free of its launcher, its script and its GPUs.

A probe runs the training by itself, without the script around it: `$(cd "$(dirname "$0")" && pwd)` is the folder of the
script and is put in, but what `$(date +%F)` would be only a shell can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zenith_calibration.probe.fake_rank import in_folder, interpreter
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.megatron.args import shown
from zenith_tune.describe.megatron.version import Release
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, parse_values
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.presets.megatron.job import (
    FULL_SHARDING,
    MegatronJob,
    MegatronLmOverrides,
    read_job,
    recompute_name,
    subject_of,
)
from zenith_tune.presets.megatron.space import MegatronLmSpace, SearchLimits
from zenith_tune.presets.megatron.written import measured_command, written_command
from zenith_tune.presets.shared.launched_gpus import WORLD_SIZE, pretrain_gpus
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun

if TYPE_CHECKING:
    from zenith_tune.planner.planner import Planner

_SELF = r"\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)"
_FOLDER = rf"[\"']?\$\(\s*dirname\s+(?:--\s+)?[\"']?{_SELF}[\"']?\s*\)[\"']?"
_HERE = re.compile(
    rf"\$\(\s*cd\s+(?:--\s+|-P\s+)?{_FOLDER}(?:\s*>\s*/dev/null(?:\s+2>&1)?)?\s*(?:&&|;)\s*pwd(?:\s+-P)?\s*\)|{_FOLDER}"
)
_PWD = re.compile(r"\$\(\s*pwd\s*\)|\$\{?PWD\}?\b")
_UNKNOWN = re.compile(r"\$[({\w]|`")


def plain_word(word: str, *, script: str, folder: Path) -> str | None:
    """Return a word with the folder of its script put in; None where only a shell knows what it is."""
    here = str((folder / script).parent) if script else str(folder)
    word = _HERE.sub(lambda match: here, word)
    word = _PWD.sub(lambda match: str(folder), word)
    return None if _UNKNOWN.search(word) else word


FAKE_GROUPS: Release = (0, 16)
"""First release with --fake-process-group."""
FIELDS = {"mbs": "micro_batch", "sp": "sequence_parallel", "flash": "flash_attention"}
DISPATCHER = "--moe-token-dispatcher-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob:
    """A job, and the plain command that one of its processes runs."""

    command: str
    job: MegatronJob

    @classmethod
    def of(cls, command: str, given: MegatronLmOverrides) -> Self:
        """Read a command; `given.n_gpus` may differ from what it starts, as no other rank is needed."""
        run = find_pretrain_run(command)
        num_gpus = given.n_gpus or (pretrain_gpus(run) if run is not None else None)
        if run is None or num_gpus is None:
            read_job(command, given)  # says what is missing
            raise AssertionError("a command without GPUs is refused")
        plain = _plain_command(run)
        job = read_job(plain, replace(given, n_gpus=num_gpus))
        if not job.features.has(FAKE_GROUPS):
            raise UsageError(job.features.lack("a probe", FAKE_GROUPS), hint="probe with a newer tree")
        if option := job.args.first(*FULL_SHARDING):
            problem = f"a probe counts data parallelism with and without the distributed optimizer, but got {option}"
            raise UsageError(problem, hint="take it out for the probe")
        if job.args.text(DISPATCHER) == "flex":
            problem = f"a probe runs one rank alone, which {DISPATCHER} flex cannot do"
            raise UsageError(problem, hint=f"give {DISPATCHER} alltoall for the probe")
        return cls(command=plain, job=job)

    def subject(self, cluster: str | None) -> PlanSubject:
        return subject_of(self.job, cluster)

    def named(self, text: str) -> Layout:
        """Return the command's own layout with the sizes that a text names, such as `TP8 PP4`, in place of its own."""
        values = parse_values(text, what="--layout")
        start, ranks = self.job.start, values.pop("dp", None)
        fields: dict[str, Any] = {FIELDS.get(name, name): value for name, value in values.items()}
        if "recompute" in fields:
            fields.setdefault("recompute_layers", 0)
        tp, cp = (int(fields.get(name, getattr(start, name))) for name in ("tp", "cp"))
        fields.setdefault("sequence_parallel", self.job.sequence_parallel(tp=tp, cp=cp))
        for name in ("sequence_parallel", "flash_attention"):
            fields[name] = bool(fields.get(name, getattr(start, name)))
        layout = replace(start, **fields)
        if ranks is not None and layout.dp != ranks:
            problem = f"DP follows from the {layout.num_gpus} GPUs and is {layout.dp}, but got DP{ranks}"
            raise UsageError(problem, hint="leave DP out of --layout, or give other --gpus")
        return layout

    def layouts(self) -> Iterator[Layout]:
        """Yield every layout that Megatron's rules and the command's own switches allow."""
        space = MegatronLmSpace(self.job, SearchLimits())
        return (space.layout(point) for point in space.points())

    def refuse_illegal(self, layout: Layout, subject: PlanSubject) -> None:
        """Refuse a layout that Megatron-LM would refuse."""
        for rule, reason in broken_rules(subject.model, subject.job, layout):
            # How a pipeline is cut may be written down in the command itself.
            if rule.name != "pipeline" or not self.job.has_custom_split:
                problem = f"Megatron-LM would refuse this layout, because {reason}"
                raise UsageError(problem, hint="choose another --layout")

    def best(self, planner: Planner, top: int, risk: float) -> list[Layout]:
        layouts = list(dict.fromkeys(self.layouts()))
        planned = [each for each in planner.evaluate(layouts) if each.oom_probability < risk]
        if not planned:
            problem = f"none of {len(layouts)} layouts is planned to fit"
            raise UsageError(problem, hint="name one by --layout, or take more GPUs")
        best: dict[Layout, Layout] = {}
        for each in sorted(planned, key=lambda each: each.expected_s):
            # Of one cut the fastest recomputation stands for the others, which a probe would find as slow as planned.
            best.setdefault(replace(each.layout, recompute="none", recompute_layers=0), each.layout)
        return list(best.values())[:top]

    def run_of(self, layout: Layout) -> ProgramRun:
        sizes = {name: getattr(layout, name) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "zero")}
        point = {**sizes, "mbs": layout.micro_batch, "recompute": recompute_name(layout)}
        written = written_command(self.command, self.job, layout, point)
        run = find_pretrain_run(measured_command(written, self.job))
        assert run is not None
        return run


def _plain_command(run: ProgramRun) -> str:
    """Return what one process runs, where it runs; how many there are is not for the command to say."""
    folder = Path.cwd() / (run.folder or "")
    script = str(Path.cwd() / run.script) if run.script else ""
    plain = {
        name: plain_word(value, script=script, folder=folder)
        for name, value in run.variables.items()
        if name != WORLD_SIZE
    }
    # One that is not known is left to what the environment has: most are the script's own, and no part of the training.
    variables = [f"{name}={value}" for name, value in plain.items() if value is not None]
    words = [*variables, interpreter(run.launcher)]
    for word in (run.program, *run.arguments):
        known = plain_word(word, script=script, folder=folder)
        if known is None:
            problem = f"a probe runs the training without its script, and cannot know what {shown(word)} is"
            raise UsageError(problem, hint=f"write it out in {run.script or 'the command'}, or probe the plain command")
        words.append(known)
    return in_folder(run.folder, ParsedCommand.from_argv(words).text)
