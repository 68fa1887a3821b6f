"""How commands of preset megatron are recognised: Megatron-SWIFT, a pretrain script, or the bundled fake trainer."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zenith_tune.presets.megatron.command import without_layout
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs
from zenith_tune.study.resources import Resources
from zenith_tune.units import whole

_WORD = r"(?:^|[\s/;&|('\"=])"
_MEGATRON_SWIFT = re.compile(_WORD + r"(?:megatron\s+(?:sft|pt|rlhf)\b|swift[./]cli[./]_megatron\b)")
_ANY_SWIFT = re.compile(rf"{_MEGATRON_SWIFT.pattern}|{_WORD}swift\s")
_PRETRAIN_SCRIPT = re.compile(_WORD + r"pretrain_\w+\.py\b")
FAKE_TRAINER = re.compile(_WORD + r"fake_megatron_train\.py\b")


def runs_megatron(command: str) -> bool:
    """Return whether `command` names Megatron-SWIFT, a pretrain script of Megatron-LM, or the bundled fake trainer."""
    return any(pattern.search(command) for pattern in (_MEGATRON_SWIFT, _PRETRAIN_SCRIPT, FAKE_TRAINER))


def runs_ms_swift(command: str) -> bool:
    """Return whether `command` names ms-swift, whose switches take a value."""
    return bool(_ANY_SWIFT.search(command))


def runs_pretrain_script(command: str) -> bool:
    """Return whether `command` names one of Megatron-LM's own pretrain scripts."""
    return bool(_PRETRAIN_SCRIPT.search(command))


def recognises(command: str) -> bool:
    """Return whether a command runs one of these; Megatron-SWIFT is found in a script as well."""
    full = in_full(command)
    return runs_megatron(full) and "pretrain_mimo.py" not in full  # which preset mimo reads


PER_NODE, NODES = "NPROC_PER_NODE", "NNODES"
"""The environment variables from which ms-swift takes the GPUs of a node, and the nodes."""
_CLI = re.compile(r"(?:^|[/.])swift[/.]cli[/.]_megatron[/.]")


def find_swift_run(command: str) -> ProgramRun | None:
    """Return the first run of `megatron sft` that a command leads to, or None."""
    return next(iter(find_runs(command, _is_swift).runs), None)


def _is_swift(words: Sequence[str], at: int) -> bool:
    is_program = words[at].rpartition("/")[2] == "megatron" and words[at + 1 : at + 2] != []
    return (is_program and words[at + 1] in ("sft", "pt", "rlhf")) or bool(_CLI.search(words[at]))


def in_full(command: str) -> str:
    """Return what is run by a command whose script starts ms-swift; any other command comes back as it is."""
    run = None if runs_megatron(command) else find_swift_run(command)
    return command if run is None else shlex.join((*run.launcher, run.program, *run.arguments))


@dataclass(frozen=True)
class MegatronCommand:
    """A command, and what its script runs, which is looked up once; empty before a preset has one."""

    text: str

    @cached_property
    def full(self) -> str:
        return in_full(self.text) if self.text else ""

    @cached_property
    def fixed(self) -> str:
        """The same without the layout that a script of `plan --emit` has by itself, in a variable."""
        return self.full if self.full == self.text else in_full(without_layout(self.text))

    @property
    def has_layout_variable(self) -> bool:
        return self.fixed != self.full

    @property
    def is_swift(self) -> bool:
        return runs_ms_swift(self.full)


def arguments_in(command: str) -> dict[str, Any]:
    """Return the arguments of preset megatron that a run of ms-swift gives: its GPUs and its batch.

    What `plan --emit` writes is planned by the rules of `folding`.
    """
    run = find_swift_run(command)
    if run is None:
        return {}
    resources, line = swift_resources(run), ParsedCommand.from_argv([run.program, *run.arguments])
    found: dict[str, Any] = {
        "n_gpus": resources.gpus_per_node * resources.nodes if resources.gpus_per_node else None,
        "gbs": line.count("--global-batch-size"),
        "folding": MegatronCommand(command).has_layout_variable or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def swift_resources(run: ProgramRun) -> Resources:
    """Return the nodes of a run, and the GPUs of each where it says."""
    known: Mapping[str, str] = {**os.environ, **run.variables}
    return Resources(nodes=whole(known.get(NODES, "")) or 1, gpus_per_node=whole(known.get(PER_NODE, "")) or None)
