"""How a command gets onto the nodes of its job: by itself, once on each, or by a launcher that reads a host file."""

from __future__ import annotations

import contextlib
from enum import StrEnum

from zenith_tune.command_line.launchers import program_name
from zenith_tune.command_line.rank_launcher import DEEPSPEED, RankLauncher
from zenith_tune.command_line.shell_target import find_target
from zenith_tune.command_line.shell_tokens import Word
from zenith_tune.command_line.shell_words import lex
from zenith_tune.errors import CommandError

HOSTFILE = "hostfile"
_LAUNCHES_ITSELF = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun", "horovodrun"})
_OWN_HOSTS = ("--hostfile", "-H", "--launcher")


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

        >>> [str(Launch.of(command, 2)) for command in ("srun python t.py", "torchrun t.py", "deepspeed t.py")]
        ['once', 'each-node', 'hostfile']
        """
        if num_nodes == 1 or _launches_itself(command):
            return cls.ONCE
        launcher = RankLauncher.find(command)
        if launcher is None or launcher.kind != DEEPSPEED:
            return cls.EACH_NODE
        return cls.ONCE if any(launcher.option(name) is not None for name in _OWN_HOSTS) else cls.HOSTFILE


def launched_command(command: str, launch: Launch) -> str:
    """Return the command as the job runs it: DeepSpeed reads neither its port nor its hosts from the environment.

    >>> launched_command("deepspeed --num_gpus 4 train.py", Launch.ONCE)
    'deepspeed --master_port "$MASTER_PORT" --num_gpus 4 train.py'
    """
    launcher = RankLauncher.find(command)
    if launcher is None or launcher.kind != DEEPSPEED:
        return command
    options = {}
    if launcher.option("--master-port") is None:
        options["--master_port"] = '"$MASTER_PORT"'
    if launch is Launch.HOSTFILE:
        options["--hostfile"] = f'"$ZENITHTUNE_TRIAL_FOLDER/{HOSTFILE}"'
    return launcher.with_options(options) if options else command


def _launches_itself(command: str) -> bool:
    words = [token for token in lex(command) if isinstance(token, Word)]
    with contextlib.suppress(CommandError):
        words += find_target(command).words  # those inside a `bash -c`
    return any((program_name(word) or "") in _LAUNCHES_ITSELF for word in words)
