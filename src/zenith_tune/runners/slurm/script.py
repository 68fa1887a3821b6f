"""The script of a trial's job: notes who it is, starts the command on its nodes, and notes how it ended."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zenith_tune.runners.launch.gang import (
    HOSTFILE,
    SHELL_MEETING,
    deepspeed_on_each_node,
    given_gpus,
    meeting_command,
)
from zenith_tune.runners.launch.own_command import GPUS, PORT, accelerate_options, own_command
from zenith_tune.runners.launch.process_tree import END_MARKED, MARK, end_arguments
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.launchers import program_name
from zenith_tune.shell.lexer import Word
from zenith_tune.shell.rank_launcher import DEEPSPEED, RankLauncher
from zenith_tune.shell.variables import with_variables
from zenith_tune.study.resources import Resources

_LAUNCHES_ITSELF = frozenset({"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "prterun", "horovodrun"})
_PORT = SHELL_MEETING.port


class Launch(StrEnum):
    """The way in which a command is started on the nodes of its job."""

    ONCE = "once"
    """It runs on the first node, and starts what it needs on the others itself."""
    EACH_NODE = "each-node"
    """It runs once on every node, as torchrun wants it."""
    HOSTFILE = "hostfile"
    """It runs on the first node, and reads the nodes from a file."""

    @classmethod
    def of(cls, command: str, num_nodes: int) -> Launch:
        """Return how a command is launched, by the program that it starts with."""
        parsed = ParsedCommand.of(command)
        words = [token for token in parsed.tokens if isinstance(token, Word)]
        if parsed.found_target is not None:
            words += parsed.found_target.words  # those inside a `bash -c`
        if num_nodes == 1 or any((program_name(word) or "") in _LAUNCHES_ITSELF for word in words):
            return cls.ONCE
        launcher = parsed.launcher
        goes_there_itself = launcher is not None and launcher.kind == DEEPSPEED and launcher.option("--launcher")
        return cls.HOSTFILE if goes_there_itself else cls.EACH_NODE


def launched_command(command: str, launch: Launch, needs: Resources) -> str:
    """Return the command as the job runs it: its launcher on the job's nodes and GPUs, and at the job's port."""
    gpus = given_gpus(needs.gpus_per_node) if needs.gpus_per_node else ""  # Slurm may have given the whole node
    if needs.nodes == 1:
        return own_command(command, gpus=gpus, port=_PORT)
    command = with_variables(command, {PORT: _PORT, **({GPUS: gpus} if gpus else {})})
    launcher = ParsedCommand.of(command).launcher
    if launcher is None:
        return command
    if launch is not Launch.EACH_NODE:
        return _launched_once(launcher, command, launch)
    if launcher.kind == DEEPSPEED:
        return deepspeed_on_each_node(command, needs.nodes, needs.gpus_per_node)
    meeting = SHELL_MEETING._replace(nodes=str(needs.nodes))
    return meeting_command(launcher, command, meeting, accelerate_options(gpus))


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


# Bash handles a signal only while it waits, so the command runs in the background, yet with a SIGINT that it can get.
# What ends the marked processes does not belong to the job any more: Slurm, which kills the rest, lets it do its work.
# The guard begins when descriptor 9 is closed, on SIGTERM or by the end of this shell, also by SIGKILL.
_ATTEND = """sweep() {{
  setsid -f {end_marked} < /dev/null 2> /dev/null 9>&-
}}
exec 9> >(exec setsid -f {guard} > /dev/null 2>&1)
attend() {{
  local _is_new= _code
  trap 'exec 9>&-; ending=1 _is_new=1' TERM
  {{ trap - INT QUIT; "$@"; }} < /dev/null 9>&- &
  wait "$!"; _code=$?
  while [ -n "$_is_new" ]; do _is_new=; wait "$!"; _code=$?; done
  trap - TERM
  return "$_code"
}}
ending=
"""
# A job that was given up with its node may still run there: only the one that the folder belongs to notes its end.
_SCRIPT = """#!/bin/bash
folder={folder}
{attend}note() {{
  local file=$1; shift
  printf '%s\\n' "job $SLURM_JOB_ID" "$@" "time $(date +%s.%N)" > "$folder/.$file.$SLURM_JOB_ID" &&
    mv -f "$folder/.$file.$SLURM_JOB_ID" "$folder/$file"
}}
train() {{
  cd {cwd} || return
  export {mark}=$folder
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  export MASTER_ADDR=${{nodes[0]}} MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) NNODES=$SLURM_JOB_NUM_NODES NODE_RANK=0
  export PET_MASTER_PORT=$MASTER_PORT
{setup}{launch}
}}
note process "nodes $SLURM_JOB_NODELIST"
attend train
code=$?
[ -z "$ending" ] && read -r job < "$folder/process" && [ "$job" = "job $SLURM_JOB_ID" ] && note exit_code "code $code"
read -r < <(sweep)
{sweep_nodes}exit "$code"
"""
_SETUP = """  {{
{line}
  }} || {{ local code=$?; echo "error: the setup line failed with exit code $code" >&2; return "$code"; }}
"""
_SWEEP_NODES = """[ -n "$ending{is_swept}" ] || timeout --kill-after=2 {limit_s} srun --overlap --ntasks-per-node=1 \\
  --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" {end_marked} < /dev/null > /dev/null 2>&1 9>&-
"""
# Only the command and what it starts carry the mark, on each node: srun must live to report how they ended.
_EACH_NODE = """  export PET_MASTER_ADDR=$MASTER_ADDR PET_NNODES=$NNODES
  [ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  export ZENITHTUNE_COMMAND={command}
  rm -f "$folder/.first_code"
  env -u {mark} srun --nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL \\
    bash -c {node}
  local code=$?
  [ ! -s "$folder/.first_code" ] || read -r code < "$folder/.first_code"
  return $code"""
_NODE = """{attend}train() {{
  export NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID {mark}={folder} {node_mark}
  local command=$ZENITHTUNE_COMMAND
  unset ZENITHTUNE_COMMAND
  exec bash -o pipefail -c "$command"
}}
attend train
code=$?
# Of a gang the first to fail shows why: srun ends the others, and would report that.
[ "$code" = 0 ] || [ -n "$ending" ] || (set -o noclobber; echo "$code" > {folder}/.first_code) 2> /dev/null
read -r < <(sweep)
exit "$code"
"""
_NODE_MARK = "ZENITHTUNE_TRIAL_NODE"
"""The mark of what runs on one of several nodes: srun would wait for a daemon that holds its output."""
_HOSTS = """  printf "%s slots={slots}\\n" "${{nodes[@]}}" > "$folder/{hostfile}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmScript:
    """A job's script; `text` has the command as it is, with its secrets."""

    command: str
    folder: Path
    cwd: Path
    launch: Launch
    gpus_per_node: int | None = None
    setup: str = ""
    num_nodes: int = 1
    grace_s: float = 5.0
    """Seconds that what the command left has between SIGTERM and SIGKILL."""

    def text(self) -> str:
        mark = f"{MARK}={shlex.quote(str(self.folder))}"
        return _SCRIPT.format(
            folder=shlex.quote(str(self.folder)),
            mark=MARK,
            attend=self._attend(mark),
            cwd=shlex.quote(str(self.cwd)),
            setup=_SETUP.format(line=self.setup) if self.setup else "",
            launch=self._launch(),
            sweep_nodes=_SWEEP_NODES.format(
                # Where the command ended well on each node, each has been swept already.
                is_swept="${code##[1-9]*}" if self.launch is Launch.EACH_NODE else "",
                # How long the nodes may take beyond the grace to be asked for what is left there.
                limit_s=round(self.grace_s + 20),
                end_marked=self._end_marked(mark),
            )
            if self.num_nodes > 1
            else "",
        )

    def _attend(self, mark: str) -> str:
        return _ATTEND.format(end_marked=self._end_marked(mark), guard=self._end_marked(mark, when="read -r _"))

    def _end_marked(self, mark: str, when: str = "") -> str:
        argv = ["env", "-u", MARK, "-u", _NODE_MARK, "/bin/sh", "-c", when + END_MARKED, "end-marked"]
        return f"{shlex.join(argv)} {mark} {end_arguments('', self.grace_s)[-1]}"

    def _launch(self) -> str:
        command = shlex.quote(self.command)
        if self.launch is Launch.EACH_NODE:
            folder = shlex.quote(str(self.folder))
            node_mark = f'{_NODE_MARK}="$SLURM_NODEID:"{folder}'
            node = _NODE.format(attend=self._attend(node_mark), mark=MARK, folder=folder, node_mark=node_mark)
            return _EACH_NODE.format(command=command, mark=MARK, node=shlex.quote(node))
        # A launcher that reads the nodes from a file finds them there.
        hosts = _HOSTS.format(slots=self.gpus_per_node or 1, hostfile=HOSTFILE)
        return f"{hosts if self.launch is Launch.HOSTFILE else ''}  bash -o pipefail -c {command}"
