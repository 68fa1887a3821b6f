"""The command of a trial that shares its machine: it keeps to the GPUs and to the port that are the trial's own."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import canonical
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, TORCHRUN, RankLauncher
from zenith_tune.shell.variables import fixed_in_script, set_variables, with_variables

GPUS, PORT = "CUDA_VISIBLE_DEVICES", "MASTER_PORT"
TORCH_MEETING = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf")
"""By these torchrun meets its ranks elsewhere than at its port: two trials would meet in one place."""
DEEPSPEED_PLACE = (
    *("-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num-nodes", "--num-gpus", "--num-accelerators"),
    *("--launcher", "--launcher-args", "--force-multi"),
)
"""By these DeepSpeed chooses GPUs itself; each makes it pass over CUDA_VISIBLE_DEVICES, or cannot be with --include."""
_BY_ID = re.compile(r"(?:GPU|MIG)-[\w-]*")


def own_command(command: str, *, gpus: str = "", port: str = "") -> str:
    """Return the command with its launcher on these GPUs of one machine and meeting at this port.

    Both are written for the shell. Without `gpus` the command finds its own. One without a launcher has both from
    its environment, and what it sets there itself is replaced.

    >>> own_command("deepspeed --num_gpus 2 --master_port 29500 train.py", gpus="2,3", port="41234")
    'deepspeed --master_port 41234 --include localhost:2,3 train.py'
    """
    command = with_variables(command, {name: value for name, value in ((GPUS, gpus), (PORT, port)) if value})
    launcher = ParsedCommand.of(command).launcher
    if launcher is None:
        return command
    options: dict[str, str] = {}
    without: tuple[str, ...] = ()
    if launcher.kind == TORCHRUN and port and launcher.option("--standalone") is None:
        without = TORCH_MEETING
        # A job that may grow must be told that it does not, now that it meets at a port.
        options = {"--nnodes": "1"} if any(launcher.option(name) is not None for name in without) else {}
        options["--master-port"] = port
    elif launcher.kind == DEEPSPEED:
        options = {"--master_port": port} if port else {}
        if named := _BY_ID.search(gpus):
            problem = f"DeepSpeed takes GPUs by their numbers, but CUDA_VISIBLE_DEVICES names {named[0]}"
            raise UsageError(problem, hint="name them by number, as nvidia-smi counts them")
        if gpus:
            options["--include"], without = f"localhost:{gpus}", DEEPSPEED_PLACE
    elif launcher.kind == ACCELERATE:
        options, without = accelerate_options(gpus), ("--rdzv-backend", "--rdzv-conf")
        options |= {"--main_process_port": port} if port else {}
    return launcher.with_options(options, without=without) if options else command


def accelerate_options(gpus: str) -> dict[str, str]:
    """Return what has Accelerate take the GPUs that its environment names, whatever its file says."""
    return {"--gpu_ids": "all"} if gpus else {}


def replaced_settings(command: str, names: Mapping[str, str]) -> list[str]:
    """Return in one line each what the command sets of these variables and trials have of their own.

    `names` says of each variable what it stands for, such as `GPUs`.
    """
    given = set_variables(command)
    return [
        f"{name}={given[name][:60]} of the command is replaced: each trial has {what} of its own"
        for name, what in names.items()
        if name in given
    ]


def own_variables(*, has_gpus: bool) -> dict[str, str]:
    """Return the variables of a trial on a machine that it shares, each with what it stands for."""
    return {GPUS: "GPUs", PORT: "a port"} if has_gpus else {PORT: "a port"}


def check_script(command: str, names: Mapping[str, str]) -> None:
    """Raise UsageError where the command's script sets one of these variables itself, which nobody can replace."""
    for name, what in names.items():
        if (found := fixed_in_script(command, name)) is not None:
            script, line = found
            problem = f"trials side by side have {what} of their own by {name}, but {script} sets it ({line[:60]})"
            raise UsageError(problem, hint="take that line out, or run trials one at a time")


NODE_RANK = "ZENITHTUNE-NODE-RANK"
"""Stands in the command for the number of the node."""
_NAMES_HOSTS = ("--include", "-i", "--exclude", "-e")


class Meeting(NamedTuple):
    """Hold, written for the shell, how many nodes there are, which one this is, and where they meet."""

    nodes: str
    rank: str
    address: str
    port: str


def gang_command(command: str, num_nodes: int, address: str, port: int) -> str:
    """Return the command that each node starts; NODE_RANK in it is to be replaced by the node's own number.

    >>> gang_command("torchrun train.py", 2, "n1", 29511)
    'torchrun --nnodes 2 --node-rank ZENITHTUNE-NODE-RANK --master-addr n1 --master-port 29511 train.py'
    """
    launcher = ParsedCommand.of(command).launcher
    meeting = Meeting(str(num_nodes), NODE_RANK, shlex.quote(address), str(port))
    if launcher is not None and (launcher.kind == TORCHRUN or (launcher.kind == ACCELERATE and num_nodes > 1)):
        return meeting_command(launcher, command, meeting)
    if num_nodes == 1:
        return command
    if launcher is None and not _reads_its_rank(command):
        problem = f"a command on {num_nodes} nodes must start its ranks by torchrun, deepspeed or accelerate"
        raise UsageError(
            f"{problem}, or read $NODE_RANK, $NNODES, $MASTER_ADDR and $MASTER_PORT, but this one does not"
        )
    return command


def meeting_command(
    launcher: RankLauncher, command: str, meeting: Meeting, more: Mapping[str, str] | None = None
) -> str:
    """Return a torchrun or accelerate command that meets the other nodes so, and has further options."""
    if launcher.kind == TORCHRUN:
        return _torchrun(launcher, command, meeting)
    names = ("--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port")
    options = {**dict(zip(names, meeting, strict=True)), **(more or {})}
    return launcher.with_options(options, without=("--rdzv-backend", "--rdzv-conf"))


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
    for name in _NAMES_HOSTS:
        if (hosts := launcher.option(name)) is not None:
            problem = (
                f"a trial's hosts are given out by the runner, but the command names its own by {name} {hosts[:60]}"
            )
            raise UsageError(problem, hint="take it out")
    added = {**{name: shlex.quote(value) for name, value in options.items()}, **(written or {})}
    added |= {flag: "" for flag in flags if launcher.option(canonical(flag)) is None}
    return launcher.with_options(added, without=("-H", "--hostfile", "--num-nodes", "--master-addr", *without))


def check_gang_command(command: str, num_nodes: int) -> None:
    """Raise UsageError for a command that cannot be started on so many nodes."""
    if is_deepspeed(command):
        deepspeed_command(command, {})
    else:
        gang_command(command, num_nodes, "", 0)


def _torchrun(launcher: RankLauncher, command: str, meeting: Meeting) -> str:
    if launcher.option("--standalone") is not None:
        if meeting.nodes == "1":
            return command
        problem = "torchrun --standalone keeps a job on one node"
        raise UsageError(f"{problem}, but it is to run on {meeting.nodes}", hint="take --standalone out")
    names = ("--nnodes", "--node-rank", "--master-addr", "--master-port")
    return launcher.with_options(dict(zip(names, meeting, strict=True)), without=TORCH_MEETING)


def _reads_its_rank(command: str) -> bool:
    """Tell whether a command without a launcher can know which node it is on."""
    if "NODE_RANK" in command:
        return True
    target = ParsedCommand.of(command).found_target
    return target is not None and target.by_shell


_MAX_HELD_BYTES = 64 * 1024


class GangLog:
    """Write whole lines: those of the first node as they are, those of the others behind `[name] `.

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
    """Return the variables that a job takes along.

    >>> portable({"PATH": "/bin", "SSH_TTY": "/dev/pts/1", "NCCL_DEBUG": "INFO", "BASH_FUNC_x%%": "() {"})
    {'PATH': '/bin', 'NCCL_DEBUG': 'INFO'}
    """
    return {
        name: value
        for name, value in environment.items()
        if _NAME.fullmatch(name) and name not in _OWN_NAMES and not name.startswith(_OWN_PREFIXES)
    }
