"""The script of a trial's job: notes who it is, starts the command on its nodes, and notes how it ended."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.runners.slurm_launch import HOSTFILE, Launch

# A job that was given up with its node may still run there: only the one that the folder belongs to notes its end.
_SCRIPT = """#!/bin/bash
folder={folder}
export ZENITHTUNE_TRIAL_FOLDER=$folder
note() {{
  local file=$1; shift
  printf '%s\\n' "job $SLURM_JOB_ID" "$@" "time $(date +%s.%N)" > "$folder/.$file.$SLURM_JOB_ID" &&
    mv -f "$folder/.$file.$SLURM_JOB_ID" "$folder/$file"
}}
train() {{
  cd {cwd} || return
  mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  export MASTER_ADDR=${{nodes[0]}} MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) NNODES=$SLURM_JOB_NUM_NODES NODE_RANK=0
  export PET_MASTER_PORT=$MASTER_PORT
{setup}{launch}
}}
note process "nodes $SLURM_JOB_NODELIST"
train < /dev/null
code=$?
read -r job < "$folder/process" && [ "$job" = "job $SLURM_JOB_ID" ] && note exit_code "code $code"
exit "$code"
"""
_SETUP = """  {{
{line}
  }} || {{ local code=$?; echo "error: the setup line failed with exit code $code" >&2; return "$code"; }}
"""
_EACH_NODE = """  export PET_MASTER_ADDR=$MASTER_ADDR PET_NNODES=$NNODES
  [ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  export ZENITHTUNE_COMMAND={command}
  srun --nodes="$NNODES" --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL \\
    bash -c {node}"""
_NODE = (
    "export NODE_RANK=$SLURM_NODEID PET_NODE_RANK=$SLURM_NODEID; command=$ZENITHTUNE_COMMAND; "
    'unset ZENITHTUNE_COMMAND; exec bash -o pipefail -c "$command"'
)
_HOSTS = """  printf "%s slots={slots}\\n" "${{nodes[@]}}" > "$folder/{hostfile}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmScript:
    """Hold what a job's script is made of; `text` has the command as it is, with its secrets."""

    command: str
    folder: Path
    cwd: Path
    launch: Launch
    gpus_per_node: int | None = None
    setup: str = ""

    def text(self) -> str:
        """Return the script."""
        return _SCRIPT.format(
            folder=shlex.quote(str(self.folder)),
            cwd=shlex.quote(str(self.cwd)),
            setup=_SETUP.format(line=self.setup) if self.setup else "",
            launch=self._launch(),
        )

    def _launch(self) -> str:
        command = shlex.quote(self.command)
        if self.launch is Launch.EACH_NODE:
            return _EACH_NODE.format(command=command, node=shlex.quote(_NODE))
        # A launcher that reads the nodes from a file finds them there.
        hosts = _HOSTS.format(slots=self.gpus_per_node or 1, hostfile=HOSTFILE)
        return f"{hosts if self.launch is Launch.HOSTFILE else ''}  bash -o pipefail -c {command}"
