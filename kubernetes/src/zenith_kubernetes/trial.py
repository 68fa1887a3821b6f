"""A trial as an object of Kubernetes: the user's manifest with a name, a command and files of the trial's own."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import secrets
import shlex
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zenith_kubernetes.manifest import JOB, QUEUE_LABEL, JobManifest, Json
from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.gang import SHELL_MEETING, deepspeed_on_each_node, meeting_command
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import DEEPSPEED
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

TRIAL_LABEL = "zenithtune/trial"
FOLDER_ANNOTATION = "zenithtune/folder"
PORT = 29500
_MOST_BYTES = 96 * 1024
"""Files of a trial that fit into its command, which Linux keeps below 128 KiB a word."""
_KEPT_S = 24 * 3600
"""How long the cluster keeps a finished Job that no tuner took away."""

# The files of the trial are in its command, so that nothing but the image is needed; a volume may hold them as well.
_SCRIPT = """export {mark}={folder}
export NNODES={nodes} NODE_RANK="${{JOB_COMPLETION_INDEX:-0}}"
export MASTER_ADDR="${{PET_MASTER_ADDR:-{address}}}" MASTER_PORT="${{PET_MASTER_PORT:-{port}}}"
mkdir -p "${mark}" || exit 1
{unpack}{exports}if command -v bash > /dev/null; then exec bash -o pipefail -c {command}; else exec sh -c {command}; fi
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTemplate:
    """What the trials of a study have in common."""

    manifest: JobManifest
    queue: str | None = None

    def trial(self, name: str, folder: Path, command: str, needs: Resources) -> JobManifest:
        """Return the object of a trial."""
        own = self.manifest.renamed(name).sized(needs.nodes, needs.gpus_per_node)
        own = own.with_argv(["sh", "-c", _script(name, own.kind, folder, command, needs)])
        labels = {TRIAL_LABEL: digest(folder)} | ({QUEUE_LABEL: self.queue} if self.queue else {})
        own = own.labelled(labels, {FOLDER_ANNOTATION: str(folder)})
        if own.kind != JOB:
            return own.suspended(False)
        # A pod that failed is not started again: the tuner decides that.
        spec = {"backoffLimit": 0, "ttlSecondsAfterFinished": _KEPT_S, "suspend": False}
        for each in ("selector", "manualSelector", "podFailurePolicy", "backoffLimitPerIndex", "maxFailedIndexes"):
            own.document["spec"].pop(each, None)
        network = {"subdomain": name} if needs.nodes > 1 else {}
        return own.changed_spec(**spec).changed_pod(restartPolicy="Never", **network)

    def service(self, name: str, uid: str) -> Json:
        """Return the headless Service by which the pods of a Job of several nodes find one another."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        }
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": spec,
        }


def new_name(folder: Path) -> str:
    """Return a name that no other run has; it begins as all those of its folder do."""
    return f"zt-{digest(folder)}-{secrets.token_hex(3)}"


def digest(folder: Path) -> str:
    """Return what tells a folder from all others, as a label can hold it."""
    return hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:12]


def gang_command(command: str, needs: Resources) -> str:
    """Return the command that each pod of a trial runs."""
    launcher = ParsedCommand.of(command).launcher
    if needs.nodes == 1 or launcher is None:
        return command
    if launcher.kind == DEEPSPEED:
        return deepspeed_on_each_node(command, needs.nodes, needs.gpus_per_node)
    return meeting_command(launcher, command, SHELL_MEETING._replace(nodes=str(needs.nodes)))


def _script(name: str, kind: str, folder: Path, command: str, needs: Resources) -> str:
    peer = f"{name}-0.{name}" if kind == JOB else f"{name}-node-0-0.{name}"
    own = {key: value for key, value in os.environ.items() if key.startswith("ZENITHTUNE_") and key != MARK}
    return _SCRIPT.format(
        mark=MARK,
        folder=shlex.quote(str(folder)),
        nodes=needs.nodes,
        address="127.0.0.1" if needs.nodes == 1 else peer,
        port=PORT,
        unpack=unpacking(folder, _files(folder), f"${MARK}"),
        exports="".join(f"export {key}={shlex.quote(value)}\n" for key, value in sorted(own.items())),
        command=shlex.quote(gang_command(command, needs)),
    )


def _files(folder: Path) -> list[Path]:
    """Return what a trial needs of its folder."""
    files = TrialFolder(folder)
    own = {files.command, files.trial, files.log, files.job, files.process, files.exit_code}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in own]
    return [path for path in paths if not path.name.startswith((".", "log."))]


def unpacking(folder: Path, paths: Iterable[Path], where: str) -> str:
    """Return the line that brings files of a folder into a container; nothing where there are none."""
    packed, paths = io.BytesIO(), [*paths]
    if not paths:
        return ""
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in paths:
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    text = base64.b64encode(packed.getvalue()).decode()
    if len(text) > _MOST_BYTES:
        problem = (
            f"the files of a trial must have at most {_MOST_BYTES // 1024} KiB packed, but have {len(text) // 1024}"
        )
        raise UsageError(f"kubernetes: {problem}", hint="mount a volume that has them in the manifest")
    return f'mkdir -p "{where}" && echo {text} | base64 -d | tar -xzf - -C "{where}" || exit 1\n'
