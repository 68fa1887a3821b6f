"""The command of a trial that shares its machine: it keeps to the GPUs and to the port that are the trial's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED, TORCHRUN
from zenith_tune.shell.variables import fixed_in_script, set_variables, with_variables

GPUS, PORT = "CUDA_VISIBLE_DEVICES", "MASTER_PORT"
TORCH_MEETING = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf")
"""Options by which torchrun's ranks meet elsewhere than at its port: two trials would meet in one place."""
DEEPSPEED_PLACE = (
    *("-H", "--hostfile", "-i", "--include", "-e", "--exclude", "--num-nodes", "--num-gpus", "--num-accelerators"),
    *("--launcher", "--launcher-args", "--force-multi"),
)
"""Options by which DeepSpeed chooses GPUs itself, past CUDA_VISIBLE_DEVICES, or that exclude --include."""


def own_command(command: str, *, gpus: str = "", port: str = "") -> str:
    """Return the command with its launcher on these GPUs of one machine and meeting at this port.

    Both are written for the shell. Without `gpus` the command finds its own. One without a launcher has both from
    its environment, and what it sets there itself is replaced.
    """
    command = with_variables(command, {name: value for name, value in ((GPUS, gpus), (PORT, port)) if value})
    launcher = ParsedCommand.of(command).launcher
    if launcher is None:
        return command
    options: dict[str, str] = {}
    without: tuple[str, ...] = ()
    if launcher.kind == TORCHRUN and port and launcher.option("--standalone") is None:
        without = TORCH_MEETING
        # A job that may grow must be fixed to one node, now that it meets at a port.
        options = {"--nnodes": "1"} if any(launcher.option(name) is not None for name in without) else {}
        options["--master-port"] = port
    elif launcher.kind == DEEPSPEED:
        options = {"--master_port": port} if port else {}
        if named := re.search(r"(?:GPU|MIG)-[\w-]*", gpus):
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
    given = set_variables(command) if names else {}
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
