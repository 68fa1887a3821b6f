"""How many GPUs a training command takes, as its launcher will count them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, last_option
from zenith_tune.shell.scripts.interpreter import ShellVariables
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.study.files import read_regular
from zenith_tune.study.resources import Resources
from zenith_tune.units import whole

DEFAULT_HOSTFILE = "/job/hostfile"
"""Where DeepSpeed's launcher looks unless an option says otherwise."""
WORLD_SIZE = "WORLD_SIZE"
_YAML_PROCESSES = re.compile(r"^num_processes:\s*([0-9]{1,6})\s*$", re.MULTILINE)
_SBATCH = re.compile(r"^#SBATCH\s+--?([A-Za-z-]+)[=\s]\s*(\S+)", re.MULTILINE)
ON_CPU = ("--use-cpu", "--no-cuda")
TRUE = ("", "true", "1")
"""Options of the Trainer by which a job takes no GPU, and their values."""
_NODES = ("--nnodes", "--num-nodes", "--num-machines", "-N")
MAX_BYTES = 1 << 20


def started_gpus(command: str) -> int | None:
    """Return how many processes the command starts, one for each GPU; None where it does not say."""
    parsed = ParsedCommand.of(command)
    kind, target = parsed.launcher.kind if parsed.launcher else None, parsed.found_target
    variables = {} if parsed.needs_shell else parsed.assignments()
    known = ShellVariables(environment={**os.environ, **variables})  # as in --num_gpus ${GPUS:-8}
    words = [known.joined(word) for word in target.words[: target.first]] if target else []
    if kind == DEEPSPEED:
        return _deepspeed_gpus(words, variables)
    if kind == ACCELERATE:
        return _count(last_option(words, "--num-processes")) or _accelerate_file(words)
    return _torchrun_gpus(words, variables) or slurm_request(command).num_gpus


def pretrain_gpus(run: ProgramRun) -> int | None:
    """Return the same of a run that a command or its script comes down to."""
    asked = slurm_request(f"bash {shlex.quote(run.script)}") if run.script else SlurmRequest()
    nodes = last_option(run.launcher, "--nnodes")
    if nodes is not None and _count(nodes) is None and asked.nodes:  # such as $SLURM_NNODES
        per_node = _count(last_option(run.launcher, "--nproc-per-node")) or asked.gpus_per_node
        return per_node * asked.nodes if per_node else None
    return _torchrun_gpus(run.launcher, run.variables) or asked.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """The request of a batch script, or of the allocation around it, to Slurm; None where it is not stated."""

    nodes: int | None = None
    gpus_per_node: int | None = None

    @property
    def num_gpus(self) -> int | None:
        return self.gpus_per_node * (self.nodes or 1) if self.gpus_per_node else None


def slurm_request(command: str, environment: Mapping[str, str] | None = None) -> SlurmRequest:
    """Return what the #SBATCH lines of a command's script say; the nodes else of the allocation that it runs in.

    The GPUs of an allocation may be shared by several trials, so they say nothing of one. A program that is no script,
    and is not started by srun, stays on its own node whatever is allocated.
    """
    target = ParsedCommand.of(command).found_target
    words = [word.value for word in target.outer_words] if target is not None else []
    if not words or words[0].rpartition("/")[2] not in ("bash", "sh", "srun"):
        return SlurmRequest()
    said = dict(option for word in words[1:] for option in _batch_options(word))
    known = os.environ if environment is None else environment
    nodes = _count(said.get("nodes") or said.get("N")) or _count(known.get("SLURM_NNODES"))
    gpus = said.get("gpus-per-node") or said.get("gres") or ""  # such as `8`, `h100:8` or `gpu:h100:8`
    per_node = _count(gpus.rpartition(":")[2]) or _count(said.get("ntasks-per-node"))
    return SlurmRequest(nodes=nodes, gpus_per_node=per_node)


def _batch_options(path: str) -> list[tuple[str, str]]:
    """Return the options of a script's #SBATCH lines, without their dashes; none of what is no readable script."""
    try:
        return _SBATCH.findall(read_regular(Path(path), MAX_BYTES).decode(errors="replace"))
    except OSError:
        return []


def _torchrun_gpus(words: Sequence[str], variables: Mapping[str, str]) -> int | None:
    """Return torchrun's processes, or WORLD_SIZE where it is set; None where neither is given."""
    per_node, nodes = _count(last_option(words, "--nproc-per-node")), _count(last_option(words, "--nnodes") or "1")
    return per_node * nodes if per_node and nodes else _count(variables.get(WORLD_SIZE))


def _deepspeed_gpus(words: list[str], variables: Mapping[str, str]) -> int | None:
    hosts = _hosts(last_option(words, "-H", "--hostfile"))
    include, exclude = last_option(words, "-i", "--include"), last_option(words, "-e", "--exclude")
    num_gpus = _count(last_option(words, "--num-gpus", "--num-accelerators"))
    num_nodes = _count(last_option(words, "--num-nodes"))
    if include or exclude:
        return _filtered(hosts, include or "", exclude or "")
    if hosts:
        slots = list(hosts.values())[: num_nodes or len(hosts)]
        return sum(num_gpus or count for count in slots) or None
    if num_gpus is not None:
        return num_gpus * (num_nodes or 1)
    visible = variables.get("CUDA_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len(visible.split(",")) if visible.strip() else None


def _filtered(hosts: dict[str, int], include: str, exclude: str) -> int | None:
    """Count the slots that a filter such as `worker-0@worker-1:0,2` leaves; None where it needs a hostfile."""
    chosen = 0
    for part in (include or exclude).split("@"):
        name, colon, slots = part.partition(":")
        if not colon and name not in hosts:
            return None
        chosen += len({slot for slot in slots.split(",") if slot}) if colon else hosts[name]
    if include:
        return chosen or None
    return max(sum(hosts.values()) - chosen, 0) or None


def _hosts(path: str | None) -> dict[str, int]:
    """Return the slots of each host of a hostfile; the launcher continues without one that is not there."""
    try:
        return read_hostfile(path or DEFAULT_HOSTFILE)
    except OSError:
        return {}


def _accelerate_file(words: list[str]) -> int | None:
    path = last_option(words, "--config-file")
    try:
        text = read_regular(Path(path or os.devnull), MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
    match = _YAML_PROCESSES.search(text)
    return _count(match[1]) if match else None


def _count(text: str | None) -> int | None:
    return whole(text or "") or None


def machine_gpus() -> int | None:
    """Return the GPUs of this machine, which is what the launchers take where nothing is said; None without any."""
    from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster

    try:
        return load_cluster(LOCAL).num_gpus
    except UsageError:
        return None


def job_gpus(title: str, given: int | None, started: int | None, *, asks_machine: bool = True, option: str) -> int:
    """Return the GPUs of a job: what the user gives or the command starts, which must agree, or else this machine's.

    `option` is what the command would say them by, for the hint.
    """
    if given is not None and started is not None and given != started:
        problem = f"n_gpus must be what the command starts, but got {given} and the command starts {started}"
        raise UsageError(problem, hint="leave n_gpus out, or change the command")
    found = given or started or (machine_gpus() if asks_machine else None)
    if found is None:
        silent = "neither the command nor this machine says" if asks_machine else "the command does not say"
        problem = f"{title} must know the number of GPUs, but {silent}"
        raise UsageError(problem, hint=f"give --gpus 8, or {option} 8 in the command")
    return found


def launched_resources(command: str, num_gpus: int | None = None) -> Resources:
    """Return the nodes, and the GPUs of each where the launcher or else `num_gpus` says."""
    try:
        started = started_gpus(command) or num_gpus
    except UsageError:  # a hostfile that cannot be read is reported by the preset that needs it
        started = num_gpus
    parsed = ParsedCommand.of(command)
    given = last_option(parsed.front, *_NODES) or ""
    # torchrun also takes a range: an elastic job runs with its least number as well.
    nodes = _count(given.partition(":")[0]) or slurm_request(command).nodes or 1
    names = [name for name in ON_CPU if parsed.has(name)]
    if started is None or started % nodes or any((parsed.get(name) or "").lower() in TRUE for name in names):
        return Resources(nodes=nodes)
    return Resources(nodes=nodes, gpus_per_node=started // nodes)


def run_resources(command: str, run: ProgramRun | None, num_gpus: int) -> Resources:
    """Return the same of a command whose script may have the launcher: the nodes are those that it starts there."""
    found = launched_resources(command, num_gpus)
    said = last_option(run.launcher, *_NODES) if run is not None else None
    nodes = _count((said or "").partition(":")[0])
    return found.given(nodes=nodes) if nodes and found.nodes == 1 and num_gpus % nodes == 0 else found
