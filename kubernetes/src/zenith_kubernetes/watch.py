"""Tunes annotated jobs of a namespace before they run; what it is about to do is kept in the cluster, not in itself."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from zenith_kubernetes.api import ApiError, ApiSilentError, Cluster
from zenith_kubernetes.held_job import OPTIMIZE, QUEUE, REASON, RELEASE_LABEL, HeldJob, State
from zenith_kubernetes.manifest import JOB, QUEUE_LABEL, TRAIN_JOB, VERSIONS, JobManifest, Json, plain_words
from zenith_kubernetes.trial import TRIAL_LABEL
from zenith_tune.errors import UsageError
from zenith_tune.record.folder import StudyFolder
from zenith_tune.shell.secrets import find_secrets
from zenith_tune.study.files import make_folder, write_atomically

_YOUNG_S = 60.0
"""A job that has run for longer than this when it is first seen is let run."""
_LEASE, _LEASE_S, _RENEW_S = "zenithtune-watch", 30.0, 8.0
_END_S = 120.0
"""How long a study has to end its trials when the watcher is stopped."""
_DIE_WITH_PARENT = 1
_STOPPED = (130, 143, -signal.SIGINT, -signal.SIGTERM)
"""How a tuner ends that was asked to: its study is continued later."""


class JobWatch:
    """The jobs of a namespace that ask to be tuned: at most so many at a time."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        output_dir: Path,
        at_most: int = 1,
        runner_args: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
        poll_s: float = 2.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self._cluster, self._at_most, self._poll_s, self._say = cluster, at_most, poll_s, say
        self._folder = output_dir.absolute()
        self._runner_args = {"namespace": cluster.namespace, **(runner_args or {})}
        self._options = options
        self._studies: dict[str, subprocess.Popen[bytes]] = {}
        """The tuners under way, by the uid of their job."""
        self._lease = _Lease(cluster)
        self._over = threading.Event()
        self._said = ""

    def stop(self) -> None:
        """Have `run` end; jobs that are held stay so until the next watcher."""
        self._over.set()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._safely(self.look)
                self._over.wait(self._poll_s)
        finally:
            self._end_studies()
            self._safely(self._lease.give_back)

    def look(self) -> None:
        """Take every job one step further."""
        if not self._lease.is_ours():
            self._end_studies()
            self._say_once("another watcher has this namespace: waiting")
            return
        for each in self._cluster.items(self._cluster.path("configmaps"), labelSelector=RELEASE_LABEL):
            self._replace(each)
        jobs = self._jobs()
        for job in sorted(jobs, key=lambda job: (job.state != State.TUNING, -job.age_s)):
            try:
                self._attend(job)
            except ApiError as error:
                if isinstance(error, ApiSilentError):
                    raise
                if error.status not in (404, 409):  # it has changed meanwhile: the next look sees it
                    self._say_once(f"{job.name}: {error}")
        known = {job.uid for job in jobs}
        for uid in [uid for uid in self._studies if uid not in known]:
            self._end(self._studies.pop(uid))  # its job was deleted

    def _safely(self, action: Callable[[], object]) -> None:
        try:
            action()
        except ApiError as error:
            self._say_once(f"the API server refuses or does not answer ({error}): waiting for it")

    def _say_once(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self._say(line)

    def _jobs(self) -> list[HeldJob]:
        found: list[Json] = []
        for kind in (TRAIN_JOB, JOB):
            try:
                shown = self._cluster.items(self._cluster.job_path(kind))
                found += [{**each, "apiVersion": VERSIONS[kind], "kind": kind} for each in shown]
            except ApiError as error:
                if error.status != 404:  # a cluster without Kubeflow
                    raise
        own = [each for each in found if OPTIMIZE in (each["metadata"].get("annotations") or {})]
        return [
            HeldJob(self._cluster, each) for each in own if TRIAL_LABEL not in (each["metadata"].get("labels") or {})
        ]

    def _attend(self, job: HeldJob) -> None:
        if job.state in (State.RELEASED, State.UNCHANGED) or job.is_over:
            return
        if job.state == State.READY:
            if not self._is_being_replaced(job.name):
                job.release(State.RELEASED, job.manifest.annotations.get(REASON, ""))
                self._say(f"{job.name}: released, {job.manifest.annotations.get(REASON, '')}")
        elif job.state == State.TUNING:
            self._follow(job)
        elif job.state == State.HELD:
            if len(self._studies) < self._at_most:
                job.note(State.TUNING)
                self._say(f"{job.name}: is being tuned")
        else:
            self._take(job)

    def _take(self, job: HeldJob) -> None:
        """Hold a new job, where there is something to tune."""
        try:
            job.options()
            command = job.manifest.command
            if command is None:
                raise UsageError("its command is in its image: write it in the manifest")
            if find_secrets(command):
                raise UsageError("its command holds a secret: put that into a Secret")
            if not job.is_suspended and job.age_s > _YOUNG_S:
                raise UsageError("it ran already when it was first seen")
        except UsageError as error:
            self._leave(job, str(error))
            return
        try:
            job.hold()
        except ApiError as error:
            if isinstance(error, ApiSilentError) or error.status in (404, 409):
                raise
            self._leave(job, f"it could not be held: {error}")

    def _leave(self, job: HeldJob, reason: str) -> None:
        """Let a job run as it is."""
        job.release(State.UNCHANGED, reason, starts=job.is_suspended)
        self._say(f"{job.name}: left unchanged, {reason}")

    def _follow(self, job: HeldJob) -> None:
        """Start or continue a job's study, or deal with what it came to."""
        process = self._studies.get(job.uid)
        if process is None:
            if len(self._studies) < self._at_most and not self._still_runs(job):
                self._studies[job.uid] = self._start(job)
            return
        if (code := process.poll()) is None:
            return
        if code == 0:
            self._finish(job)
        elif code not in _STOPPED:
            self._leave(job, f"its study failed: {self._last_line(job)}")
        self._studies.pop(job.uid, None)

    def _study(self, job: HeldJob) -> StudyFolder:
        return StudyFolder(self._folder, f"{job.name[:80]}-{job.uid[:8]}")

    def _still_runs(self, job: HeldJob) -> bool:
        """Tell whether the tuner that a killed watcher started is still ending its trials."""
        try:
            pid = self._log(job).with_suffix(".pid").read_text(encoding="utf-8")
            return self._study(job).path.name in Path(f"/proc/{int(pid)}/cmdline").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return False

    def _start(self, job: HeldJob) -> subprocess.Popen[bytes]:
        """Start the tuner of a job in a process of its own, which ends with this one."""
        study, own = self._study(job), job.manifest
        queue = own.annotations.get(QUEUE)
        notes = {name: None for name in own.annotations if name.startswith("zenithtune/")}
        plain = own.labelled({QUEUE_LABEL: queue} if queue else {}, notes)
        make_folder(self._folder)
        manifest = self._folder / f"{study.path.name}.yaml"
        write_atomically(manifest, plain.as_yaml(), is_private=True)
        pairs = {**self._runner_args, "manifest": str(manifest)}
        argv = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", *self._options, *job.options()]
        argv += ["--kubernetes", ",".join(f"{name}={text.replace(',', chr(92) + ',')}" for name, text in pairs.items())]
        argv += ["--output-dir", str(self._folder), "--study-name", study.path.name]
        argv += ["--resume"] if (study.path / "trials").exists() else []
        with self._log(job).open("ab") as log:
            command = own.command or ""
            argv += ["--", *(plain_words(command) or ["bash", "-c", command])]
            process = subprocess.Popen(argv, stdout=log, stderr=log, preexec_fn=_die_with_parent)
        write_atomically(self._log(job).with_suffix(".pid"), str(process.pid))
        return process

    def _finish(self, job: HeldJob) -> None:
        """Release a job whose study is over, with the better command where there is one."""
        study = self._study(job)
        try:
            content = json.loads(study.json.read_text(encoding="utf-8"))
            command = content["best_command"]
            gain, is_own = content.get("gain"), content.get("best_is_own") or content.get("is_within_noise")
        except (OSError, ValueError, KeyError) as error:
            self._leave(job, f"its study cannot be read: {error}")
            return
        if command is None or is_own:
            self._leave(job, "its own command is the fastest that was found")
            return
        times = f"{gain:.2f}x as fast: " if isinstance(gain, int | float) else ""
        reason = f"{times}{shlex.join(command.split())[:600]}"
        try:
            made = job.replacement(command, study.path, reason)
        except UsageError as error:
            self._leave(job, str(error))
            return
        # Kept in the cluster before the old one goes: whoever continues finds what is to be made.
        kept = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": _kept_name(job.name), "labels": {RELEASE_LABEL: "true"}},
            "data": {"job": json.dumps(made.document), "replaces": job.uid},
        }
        try:
            self._cluster.create(self._cluster.path("configmaps"), kept)
        except ApiError as error:
            if error.status != 409:
                raise
        self._replace(kept)

    def _replace(self, kept: Json) -> None:
        """Make a job anew that is kept for it: the old one goes, the new one comes, and is started after that."""
        made = JobManifest.of(json.loads(kept["data"]["job"]))
        path = self._cluster.job_path(made, made.name)
        try:
            there = self._cluster.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            self._cluster.create(self._cluster.job_path(made), made.document)
            there = {}
        if there and there["metadata"]["uid"] == kept["data"]["replaces"]:
            if "deletionTimestamp" not in there["metadata"]:
                body = {"propagationPolicy": "Background", "preconditions": {"uid": kept["data"]["replaces"]}}
                self._cluster.delete(path, body)
            return  # the next look makes the new one
        self._cluster.delete(self._cluster.path("configmaps", kept["metadata"]["name"]))

    def _is_being_replaced(self, name: str) -> bool:
        try:
            self._cluster.get(self._cluster.path("configmaps", _kept_name(name)))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _log(self, job: HeldJob) -> Path:
        return self._folder / f"{self._study(job).path.name}.log"

    def _last_line(self, job: HeldJob) -> str:
        lines = self._log(job).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")[:300]

    def _end_studies(self) -> None:
        processes = [*self._studies.values()]
        self._studies.clear()
        for each in processes:
            each.send_signal(signal.SIGTERM)
        for each in processes:
            self._end(each)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Lease:
    """The right to watch a namespace, which one watcher has at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._me = f"{socket.gethostname()}-{os.getpid()}-{id(self):x}"
        self._path = cluster.path("leases", _LEASE, version="coordination.k8s.io/v1")
        self._seen, self._seen_at = "", 0.0
        self._renewed_at = float("-inf")

    def is_ours(self) -> bool:
        """Take or renew the right; False while another watcher has it."""
        if time.monotonic() - self._renewed_at < _RENEW_S:
            return True
        try:
            found = self._cluster.get(self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            parent = self._path.rpartition("/")[0]
            self._cluster.create(parent, {"metadata": {"name": _LEASE}, "spec": self._spec()})
            self._renewed_at = time.monotonic()
            return True
        spec, version = found.get("spec") or {}, str(found["metadata"]["resourceVersion"])
        if version != self._seen:
            self._seen, self._seen_at = version, time.monotonic()
        holder = spec.get("holderIdentity")
        # By this clock alone: that of the other machine may differ.
        if holder not in (None, "", self._me) and time.monotonic() - self._seen_at < _LEASE_S:
            return False
        self._cluster.patch(self._path, {"metadata": {"resourceVersion": version}, "spec": self._spec()})
        self._renewed_at = time.monotonic()
        return True

    def give_back(self) -> None:
        if self._renewed_at > float("-inf"):
            self._cluster.patch(self._path, {"spec": {"holderIdentity": None}})

    def _spec(self) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._me, "leaseDurationSeconds": int(_LEASE_S), "renewTime": now}


def _kept_name(job: str) -> str:
    return f"zenithtune-{job}"[:253]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
