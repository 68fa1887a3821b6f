"""How a command gets onto the nodes of its job: by itself, once on each, or by a launcher that reads a host file."""

from __future__ import annotations

import contextlib
from enum import StrEnum

from zenith_tune.command_line.shell_tokens import Word
from zenith_tune.errors import CommandError
from zenith_tune.runners.gang_command import Meeting, deepspeed_command, meeting_command
from zenith_tune.runners.launch.own_command import DEEPSPEED_PLACE, GPUS, PORT, accelerate_options, own_command
from zenith_tune.shell.launchers import program_name
from zenith_tune.shell.lexer import lex
from zenith_tune.shell.rank_launcher import DEEPSPEED, RankLauncher
from zenith_tune.shell.target import find_target
from zenith_tune.shell.variables import with_variables
from zenith_tune.study.resources import Resources

HOSTFILE = "hostfile"
_LAUNCHES_ITSELF = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun", "horovodrun"})
_PORT = '"$MASTER_PORT"'
_OWN_GPUS = "ZENITHTUNE_GPUS"
_MOST_GPUS = 1024
"""Slots of a node in a host file where other options say which of them count."""


class Launch(StrEnum):
    """Say who starts a command on the nodes of its job."""

    ONCE = "once"
    """It runs on the first node, and starts what it needs on the others itself."""
    EACH_NODE = "each-node"
    """It runs once on every node, as torchrun wants it."""
    HOSTFILE = "hostfile"
    """It runs on the first node, and is told the nodes by a file."""

    @classmethod
    def of(cls, command: str, num_nodes: int) -> Launch:
        """Return how a command is launched, by the program that it starts with.

        >>> commands = ("srun python t.py", "torchrun t.py", "deepspeed --launcher slurm t.py")
        >>> [str(Launch.of(command, 2)) for command in commands]
        ['once', 'each-node', 'hostfile']
        """
        if num_nodes == 1 or _launches_itself(command):
            return cls.ONCE
        launcher = RankLauncher.find(command)
        goes_there_itself = launcher is not None and launcher.kind == DEEPSPEED and launcher.option("--launcher")
        return cls.HOSTFILE if goes_there_itself else cls.EACH_NODE


def launched_command(command: str, launch: Launch, needs: Resources) -> str:
    """Return the command as the job runs it: its launcher on the job's nodes and GPUs, and at the job's port.

    >>> launched_command("deepspeed --num_gpus 4 train.py", Launch.ONCE, Resources())
    'deepspeed --master_port "$MASTER_PORT" --num_gpus 4 train.py'
    """
    gpus = _given_gpus(needs.gpus_per_node) if needs.gpus_per_node else ""
    if needs.nodes == 1:
        return own_command(command, gpus=gpus, port=_PORT)
    command = with_variables(command, {PORT: _PORT, **({GPUS: gpus} if gpus else {})})
    launcher = RankLauncher.find(command)
    if launcher is None:
        return command
    if launch is not Launch.EACH_NODE:
        return _launched_once(launcher, command, launch)
    if launcher.kind == DEEPSPEED:
        return _deepspeed_on_each_node(launcher, command, needs)
    meeting = Meeting(str(needs.nodes), '"$NODE_RANK"', '"$MASTER_ADDR"', _PORT)
    return meeting_command(launcher, command, meeting, accelerate_options(gpus))


def _given_gpus(num_gpus: int, otherwise: str = "") -> str:
    """Return, for the shell, the GPUs that Slurm gave on this node; it may have given the whole of it."""
    given = f"${{{GPUS}:-{otherwise}}}" if otherwise else f"${GPUS}"
    return f'"$(echo "{given}" | cut -d , -f -{num_gpus})"'


def _launched_once(launcher: RankLauncher, command: str, launch: Launch) -> str:
    """Return a command that starts its ranks on several nodes itself; where they meet is then its own affair."""
    options: dict[str, str] = {}
    if launcher.kind == DEEPSPEED:
        options["--master_port"] = _PORT
    elif launcher.option("--master-port") is not None:
        options["--master-port"] = _PORT
    elif launcher.option("--main-process-port") is not None:
        options["--main_process_port"] = _PORT
    host, colon, port = (launcher.option("--rdzv-endpoint") or "").rpartition(":")
    if colon and port.isdecimal():
        options["--rdzv-endpoint"] = f'"{host}:$MASTER_PORT"'
    if launch is Launch.HOSTFILE:
        options["--hostfile"] = f'"$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}"'
    return launcher.with_options(options, without=("-H",) if launch is Launch.HOSTFILE else ()) if options else command


def _deepspeed_on_each_node(launcher: RankLauncher, command: str, needs: Resources) -> str:
    """Return a deepspeed command that starts the ranks of its own node, on the GPUs that Slurm gave there.

    It takes the numbers of GPUs for all nodes from one list, and looks only at those of its own.
    """
    asked = launcher.option("--num-gpus", "--num-accelerators") or ""
    num_gpus = needs.gpus_per_node or (int(asked) if asked.isdecimal() else 1)
    names = [f"node-{rank}" for rank in range(needs.nodes)]
    gpus = _given_gpus(num_gpus, otherwise=",".join(map(str, range(num_gpus))))
    hosts = f'"$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}-$NODE_RANK"'
    lines = [f"export {_OWN_GPUS}={gpus}", f"printf '%s slots={_MOST_GPUS}\\n' {' '.join(names)} > {hosts}"]
    edited = deepspeed_command(
        command,
        {},
        flags=["--no_ssh"],
        written={
            "--hostfile": hosts,
            "--include": '"' + "@".join(f"{name}:${_OWN_GPUS}" for name in names) + '"',
            "--node_rank": '"$NODE_RANK"',
            "--master_addr": '"$MASTER_ADDR"',
            "--master_port": _PORT,
        },
        without=DEEPSPEED_PLACE,
    )
    return "\n".join([*lines, edited])


def _launches_itself(command: str) -> bool:
    words = [token for token in lex(command) if isinstance(token, Word)]
    with contextlib.suppress(CommandError):
        words += find_target(command).words  # those inside a `bash -c`
    return any((program_name(word) or "") in _LAUNCHES_ITSELF for word in words)
