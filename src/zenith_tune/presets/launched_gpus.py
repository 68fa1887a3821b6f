"""How many GPUs a command that trains with DeepSpeed takes, as its launcher will count them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.presets.deepspeed.command import PRESET
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, last_option
from zenith_tune.shell.script import ProgramRun
from zenith_tune.study.files import open_regular
from zenith_tune.study.resources import Resources
from zenith_tune.units import whole

DEFAULT_HOSTFILE = "/job/hostfile"
"""Where DeepSpeed's launcher looks unless an option says otherwise."""
_YAML_PROCESSES = re.compile(r"^num_processes:\s*(\d{1,6})\s*$", re.MULTILINE)
MAX_BYTES = 1 << 20


def started_gpus(command: str) -> int | None:
    """Return how many processes the command starts, one for each GPU; None where it does not tell."""
    try:
        parsed = ParsedCommand.of(command)
    except CommandError:
        return None
    words, kind = parsed.front, parsed.launcher.kind if parsed.launcher else None
    variables = {} if parsed.needs_shell else parsed.assignments()
    if kind == DEEPSPEED:
        return _deepspeed_gpus(words, variables)
    if kind == ACCELERATE:
        return _whole(last_option(words, "--num-processes")) or _accelerate_file(words)
    per_node = _whole(last_option(words, "--nproc-per-node"))
    if per_node is not None:
        nodes = last_option(words, "--nnodes") or "1"
        num_nodes = _whole(nodes)
        return per_node * num_nodes if num_nodes else None
    return _whole(variables.get("WORLD_SIZE"))


def _deepspeed_gpus(words: list[str], variables: Mapping[str, str]) -> int | None:
    hosts = _hosts(last_option(words, "-H", "--hostfile"))
    include, exclude = last_option(words, "-i", "--include"), last_option(words, "-e", "--exclude")
    num_gpus = _whole(last_option(words, "--num-gpus", "--num-accelerators"))
    num_nodes = _whole(last_option(words, "--num-nodes"))
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
    match = _YAML_PROCESSES.search("\n".join(_lines(path))) if path else None
    return int(match[1]) or None if match else None


def _lines(path: str) -> list[str]:
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            return file.read(MAX_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _front(command: str) -> list[str]:
    try:
        return ParsedCommand.of(command).front
    except CommandError:
        return []


def _whole(text: str | None) -> int | None:
    return (int(text) or None) if text and text.isdecimal() and len(text) < 7 else None


def machine_gpus() -> int:
    """Return the GPUs of this machine, which is what the launchers take where nothing is said."""
    from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster

    try:
        return load_cluster(LOCAL).num_gpus
    except UsageError:
        problem = f"{PRESET} must know the number of GPUs, but neither the command nor this machine tells"
        raise UsageError(problem, hint="give --args n_gpus=8, or --num_gpus 8 in the command") from None


_NODES = ("--nnodes", "--num-nodes", "--num-machines", "-N")


def launched_resources(command: str, num_gpus: int | None = None) -> Resources:
    """Return the nodes, and the GPUs of each where the launcher or else `num_gpus` tells.

    >>> launched_resources("torchrun --nnodes 2 --nproc-per-node 4 train.py")
    Resources(nodes=2, gpus_per_node=4, avoid=())
    """
    try:
        started = started_gpus(command) or num_gpus
    except UsageError:  # a hostfile that cannot be read is reported by the preset that needs it
        started = num_gpus
    nodes = _num_nodes(command)
    if started is None or started % nodes:
        return Resources(nodes=nodes)
    return Resources(nodes=nodes, gpus_per_node=started // nodes)


def _num_nodes(command: str) -> int:
    given = last_option(_front(command), *_NODES) or ""
    # torchrun also takes a range: an elastic job runs with its least number as well.
    least = given.partition(":")[0]
    return int(least) if least.isdecimal() and int(least[:6]) > 0 else 1


PER_NODE, NODES = "--nproc-per-node", "--nnodes"
VARIABLE = "WORLD_SIZE"


def pretrain_gpus(run: ProgramRun) -> int | None:
    """Return torchrun's processes, or WORLD_SIZE where the command or its script sets it; None where neither tells."""
    per_node, nodes = last_option(run.launcher, PER_NODE), last_option(run.launcher, NODES)
    num_here, num_nodes = whole(per_node or ""), whole(nodes or "1")
    if num_here is not None and num_nodes is not None:
        return num_here * num_nodes or None
    return whole(run.variables.get(VARIABLE, "")) or None
