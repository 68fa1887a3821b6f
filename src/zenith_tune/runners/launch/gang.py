"""A command on several nodes: how they meet, the log that joins their output, and the variables they inherit."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.own_command import DEEPSPEED_PLACE, GPUS, TORCH_MEETING
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import canonical
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, TORCHRUN, RankLauncher
from zenith_tune.units import whole

NODE_RANK = "ZENITHTUNE-NODE-RANK"
"""A stand-in for the number of the node in the command."""


class Meeting(NamedTuple):
    """The number of nodes, the number of this one, and where they meet, each written for the shell."""

    nodes: str
    rank: str
    address: str
    port: str


SHELL_MEETING = Meeting('"$NNODES"', '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
"""The meeting as a node's variables give it."""
HOSTFILE = "hostfile"
_OWN_GPUS = "ZENITHTUNE_GPUS"
_MOST_GPUS = 1024
"""Slots of a node in a host file whose GPUs are chosen by other options."""


def gang_command(command: str, num_nodes: int, address: str, port: int) -> str:
    """Return the command that each node starts; NODE_RANK in it is to be replaced by the node's own number."""
    launcher = ParsedCommand.of(command).launcher
    meeting = Meeting(str(num_nodes), NODE_RANK, shlex.quote(address), str(port))
    if launcher is not None and (launcher.kind == TORCHRUN or (launcher.kind == ACCELERATE and num_nodes > 1)):
        return meeting_command(launcher, command, meeting)
    if num_nodes == 1:
        return command
    target = ParsedCommand.of(command).found_target
    reads_its_rank = "NODE_RANK" in command or (target is not None and target.by_shell)
    if launcher is None and not reads_its_rank:
        problem = f"a command on {num_nodes} nodes must start its ranks by torchrun, deepspeed or accelerate"
        raise UsageError(
            f"{problem}, or read $NODE_RANK, $NNODES, $MASTER_ADDR and $MASTER_PORT, but this one does not"
        )
    return command


def meeting_command(
    launcher: RankLauncher, command: str, meeting: Meeting, more: Mapping[str, str] | None = None
) -> str:
    """Return a torchrun or accelerate command that meets the other nodes so, and has further options."""
    if launcher.kind != TORCHRUN:
        names = ("--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port")
        options = {**dict(zip(names, meeting, strict=True)), **(more or {})}
        return launcher.with_options(options, without=("--rdzv-backend", "--rdzv-conf"))
    if launcher.option("--standalone") is None:
        names = ("--nnodes", "--node-rank", "--master-addr", "--master-port")
        return launcher.with_options(dict(zip(names, meeting, strict=True)), without=TORCH_MEETING)
    if meeting.nodes == "1":
        return command
    problem = "torchrun --standalone keeps a job on one node"
    raise UsageError(f"{problem}, but it is to run on {meeting.nodes}", hint="take --standalone out")


def gang_environment(num_nodes: int, rank: int, address: str, port: int) -> dict[str, str]:
    """Return the variables by which a script knows its node and its peers."""
    names = {"NNODES": num_nodes, "NODE_RANK": rank, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()}


def is_deepspeed(command: str) -> bool:
    """Tell whether DeepSpeed's launcher starts the ranks."""
    launcher = ParsedCommand.of(command).launcher
    return launcher is not None and launcher.kind == DEEPSPEED


def deepspeed_command(
    command: str,
    options: Mapping[str, str],
    *,
    written: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """Return a deepspeed command with these options and flags, and without those by which it names its hosts.

    What is `written` for the shell stays as it is.
    """
    launcher = ParsedCommand.of(command).launcher
    if launcher is None or launcher.kind != DEEPSPEED:
        raise UsageError("the command must start deepspeed, but it does not")
    for name in ("--include", "-i", "--exclude", "-e"):
        if (hosts := launcher.option(name)) is not None:
            problem = (
                f"a trial's hosts are given out by the runner, but the command names its own by {name} {hosts[:60]}"
            )
            raise UsageError(problem, hint="take it out")
    added = {**{name: shlex.quote(value) for name, value in options.items()}, **(written or {})}
    added |= {flag: "" for flag in flags if launcher.option(canonical(flag)) is None}
    return launcher.with_options(added, without=("-H", "--hostfile", "--num-nodes", "--master-addr", *without))


def given_gpus(num_gpus: int, otherwise: str = "") -> str:
    """Return, for the shell, the first `num_gpus` of the GPUs that a node's variable names."""
    given = f"${{{GPUS}:-{otherwise}}}" if otherwise else f"${GPUS}"
    return f'"$(echo "{given}" | cut -d , -f -{num_gpus})"'


def deepspeed_on_each_node(command: str, num_nodes: int, gpus_per_node: int | None) -> str:
    """Return a deepspeed command that starts the ranks of its own node, on the GPUs that the scheduler gave there.

    It takes the numbers of GPUs for all nodes from one list, and looks only at those of its own.
    """
    launcher = ParsedCommand.of(command).launcher
    asked = (launcher.option("--num-gpus", "--num-accelerators") if launcher is not None else None) or ""
    num_gpus = gpus_per_node or whole(asked) or 1
    names = [f"node-{rank}" for rank in range(num_nodes)]
    gpus = given_gpus(num_gpus, otherwise=",".join(map(str, range(num_gpus))))
    hosts = f'"${MARK}/{HOSTFILE}-$NODE_RANK"'
    lines = [f"export {_OWN_GPUS}={gpus}", f"printf '%s slots={_MOST_GPUS}\\n' {' '.join(names)} > {hosts}"]
    written = {
        "--hostfile": hosts,
        "--include": '"' + "@".join(f"{name}:${_OWN_GPUS}" for name in names) + '"',
        "--node_rank": SHELL_MEETING.rank,
        "--master_addr": SHELL_MEETING.address,
        "--master_port": SHELL_MEETING.port,
    }
    edited = deepspeed_command(command, {}, flags=["--no_ssh"], written=written, without=DEEPSPEED_PLACE)
    return "\n".join([*lines, edited])


def check_gang_command(command: str, num_nodes: int) -> None:
    """Raise UsageError for a command that cannot be started on so many nodes."""
    if is_deepspeed(command):
        deepspeed_command(command, {})
    else:
        gang_command(command, num_nodes, "", 0)


def most_gangs(rooms: Sequence[int], nodes: int) -> int:
    """Return how many gangs of `nodes` different nodes fit, where node i has room for rooms[i] of their parts."""
    # k gangs fit exactly if k parts of each gang find their nodes when no node takes two parts of one gang.
    gangs = 0
    while sum(min(room, gangs + 1) for room in rooms) >= (gangs + 1) * nodes:
        gangs += 1
    return gangs


_MAX_HELD_BYTES = 64 * 1024


class GangLog:
    """A log of whole lines: those of the first node as they are, those of the others behind `[name] `.

    >>> log = GangLog(["n1", "n2"], lambda text: print(text.decode(), end=""))
    >>> log.feed(1, b"loss 1\\nlo"), log.feed(0, b"step 1\\n"), log.close(1)
    [n2] loss 1
    step 1
    [n2] lo
    (None, None, None)
    """

    def __init__(self, names: Sequence[str], write: Callable[[bytes], object]) -> None:
        self._prefixes = [b"" if rank == 0 else f"[{name}] ".encode() for rank, name in enumerate(names)]
        self._held = [b"" for _ in names]
        self._write = write
        self._lock = threading.Lock()

    def feed(self, rank: int, text: bytes) -> None:
        """Take what a node printed; the beginning of a line is held until the rest of it comes."""
        with self._lock:
            if rank == 0 and len(self._held) == 1:
                self._write(text)
                return
            held = self._held[rank] + text
            end = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            lines, rest = held[:end].splitlines(keepends=True), held[end:]
            if len(rest) > _MAX_HELD_BYTES:
                lines, rest = [*lines, rest + b"\n"], b""
            self._held[rank] = rest
            if lines:
                self._write(b"".join(self._prefixes[rank] + line for line in lines))

    def close(self, rank: int) -> None:
        """Write what a node printed last, as a line of its own."""
        with self._lock:
            rest, self._held[rank] = self._held[rank], b""
            if rest:
                self._write(self._prefixes[rank] + rest + b"\n")


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# What a login on the other machine sets for itself, and what belongs to this terminal or to this machine's session.
_OWN_NAMES = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL", "_", "MAIL", "TMPDIR"),
        *("TERM", "TTY", "DISPLAY", "XAUTHORITY", "TMUX", "STY"),
    )
)
_OWN_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_", "RAY_", "PYTEST_", "VSCODE_")


def portable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job takes along."""
    return {
        name: value
        for name, value in environment.items()
        if _NAME.fullmatch(name) and name not in _OWN_NAMES and not name.startswith(_OWN_PREFIXES)
    }
