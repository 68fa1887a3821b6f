"""Runs trials on Kubernetes: each is a TrainJob of Kubeflow, or an indexed Job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from zenith_kubernetes.api import ApiError, ApiSilentError, Cluster
from zenith_kubernetes.job import KubernetesJob, refused_as_usage
from zenith_kubernetes.manifest import RUNTIME, TRAIN_JOB, JobManifest, Json
from zenith_kubernetes.trial import TRIAL_LABEL, TrialTemplate, digest, gang_command, new_name
from zenith_kubernetes.view import ClusterView
from zenith_tune.errors import UsageError
from zenith_tune.registry import keywords_of
from zenith_tune.runners.base import (
    End,
    Job,
    JobRequest,
    JobResult,
    OnState,
    Runner,
    RunnerRegistry,
    check_seconds,
    nobody_listens,
)
from zenith_tune.runners.launch.gang import check_gang_command, most_gangs
from zenith_tune.study import faults
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

_END_S = 90.0
"""How long the end of a trial's pods is waited for, and a server that does not answer meanwhile."""
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesArguments:
    """What runner kubernetes takes."""

    namespace: str | None = None
    manifest: str | None = None
    runtime: str | None = None
    image: str | None = None
    container: str | None = None
    """The container of a Job that trains."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    queue: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    image_timeout_s: float = 120.0
    """How long a pod may fail to get its image, a secret or a volume."""
    poll_s: float = 1.0
    grace_s: float = 5.0
    call_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            number = getattr(self, name)
            if number is not None and number < 1:
                problem = f"kubernetes: {name} must be at least 1, but got {number}"
                raise UsageError(problem, hint=f"give {name}=1 or leave it out")
        check_seconds("kubernetes", "image_timeout_s", self.image_timeout_s)
        check_seconds("kubernetes", "poll_s", self.poll_s, least_s=0.01)
        check_seconds("kubernetes", "grace_s", self.grace_s)
        check_seconds("kubernetes", "call_timeout_s", self.call_timeout_s, least_s=0.1)
        if self.manifest and self.runtime:
            raise UsageError("kubernetes: a manifest names its runtime itself", hint="leave runtime= out")

    def job(self) -> JobManifest:
        """Return what trials are made of."""
        if self.manifest:
            found = JobManifest.read(self.manifest, self.container)
            return found.with_image(self.image) if self.image else found
        if self.image and not self.runtime:
            return JobManifest.job(name="trial", image=self.image)
        found = JobManifest.train_job(name="trial", runtime=self.runtime or RUNTIME)
        return found.with_image(self.image) if self.image else found


@RunnerRegistry.register("kubernetes")
class KubernetesRunner(Runner):
    """Trials as TrainJobs or Jobs of a cluster, followed by their pods."""

    has_own_programs = True

    @keywords_of(KubernetesArguments)
    def __init__(self, given: KubernetesArguments) -> None:
        job = given.job()
        self._given = given
        self.grace_s, self.poll_s, self.image_timeout_s = given.grace_s, given.poll_s, given.image_timeout_s
        self.container = given.container
        self.kind = job.kind
        self.template = TrialTemplate(manifest=job, queue=given.queue)
        self.cluster = Cluster(
            kubeconfig=given.kubeconfig,
            context=given.context,
            namespace=given.namespace or job.namespace,
            call_timeout_s=given.call_timeout_s,
        )
        self.template = TrialTemplate(manifest=job.renamed(job.name, self.cluster.namespace), queue=given.queue)
        self.view = ClusterView(self.cluster, self.kind, self.cluster.job_path(job), given.poll_s)
        self._left: set[str] = set()
        """Objects that could not be deleted, because the server did not answer."""

    def needs(self, resources: Resources) -> Resources:
        """Return what a trial gets: as the user or the manifest says, and as many GPUs as its command needs."""
        own = self.template.manifest
        nodes = self._given.nodes or (own.nodes if resources.nodes == 1 else None)
        return resources.given(nodes=nodes, gpus_per_node=self._given.gpus_per_node)

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        needs = self.needs(resources)
        probe = self.template.trial(new_name(Path.cwd()), Path.cwd() / "none", "true", needs)
        try:
            self.cluster.create(self.view.jobs_path, probe.document, dryRun="All")
            self.cluster.items(self.cluster.path("pods"), limit=1)
            room = None if parallel is not None else self._room(needs)
        except ApiSilentError as error:
            problem = f"kubernetes: the API server must answer, but {error}"
            raise UsageError(problem, hint="see that `kubectl get pods` works") from error
        except ApiError as error:
            if "exceeded quota" not in str(error):
                raise self.refused(error) from error
            room = 1
        if parallel is None and room is None:
            problem = "kubernetes: --parallel auto must list the nodes of the cluster, which is forbidden here"
            raise UsageError(problem, hint="give a number, e.g. --parallel 2")
        self.num_slots = parallel or max(room or 1, 1)
        side = f"up to {self.num_slots} side by side" if self.num_slots > 1 else "one at a time"
        queue = f" in queue {self._queue()}" if self._queue() else ""
        where = f"namespace {self.cluster.namespace}{queue}"
        self.note = f"each trial is a {self.kind} on {needs.describe()} in {where}; {side}"

    def start(self, request: JobRequest) -> Job:
        request = JobRequest(
            command=request.command,
            folder=request.folder.absolute(),
            resources=request.resources,
            timeout_s=request.timeout_s,
            on_state=request.on_state,
        )
        needs = self.needs(request.resources)
        check_gang_command(request.command, needs.nodes)
        gang_command(request.command, needs)
        return KubernetesJob(self, request)

    def recover(self, folder: Path) -> JobResult | None:
        files = TrialFolder(folder.absolute())
        noted = files.read_json(files.job)
        if noted.get("runner") not in (None, "kubernetes"):
            return None
        found = self._persistently(files.path)
        for each in found:
            request = JobRequest(command="", folder=files.path, resources=Resources())
            if "exit_code" in noted or (result := self._finished(each, request)) is None:
                self.end(each["metadata"]["name"])
            else:
                noted = {"exit_code": result.exit_code, "duration_s": result.duration_s, "place": result.place}
        if noted.get("exit_code") is None:
            return None
        return JobResult(
            end=End.EXITED,
            exit_code=int(noted["exit_code"]),
            duration_s=float(noted.get("duration_s") or 0.0),
            place=str(noted.get("place") or ""),
        )

    def _finished(self, shown: Json, request: JobRequest) -> JobResult | None:
        """Return how a trial ended by itself that nobody followed, with its log; None where it did not."""
        conditions = (shown.get("status") or {}).get("conditions") or []
        is_over = any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)
        if not is_over:
            return None
        self.view.forget()
        result = KubernetesJob(self, request, shown).wait(60.0)
        return result if result is not None and result.end is End.EXITED else None

    def end(self, name: str, on_state: OnState = nobody_listens) -> None:
        """Delete a trial with its pods; returns when they are gone, or when the server does not answer for too long."""
        begin, has_reported = time.monotonic(), False
        while True:
            grace_s = 1 if self.in_a_hurry() else max(1, round(self.grace_s))
            try:
                if self._ended(name, grace_s):
                    self._left.discard(name)
                    return
            except ApiError as error:
                if not has_reported:
                    on_state(f"the API server does not end {name} ({error}): waiting for it")
                has_reported = True
            if time.monotonic() - begin > (5.0 if self.in_a_hurry() else _END_S):
                on_state(f"{self.kind} {name} could not be deleted: --resume deletes it")
                self._left.add(name)
                return
            time.sleep(_LOOK_S)

    def _ended(self, name: str, grace_s: int) -> bool:
        """Ask for the end of a trial and of its pods; returns whether all are gone."""
        path = f"{self.view.jobs_path}/{name}"
        self.cluster.delete(path, {"propagationPolicy": "Foreground"})
        pods = self.view.pods(name)
        for each in pods:
            left_s = each["metadata"].get("deletionGracePeriodSeconds")
            if left_s is None or left_s > grace_s:
                pod = self.cluster.path("pods", each["metadata"]["name"])
                self.cluster.delete(pod, {"gracePeriodSeconds": grace_s})
        if pods:
            return False
        try:
            self.cluster.get(path)
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        return False

    def refused(self, error: ApiError) -> UsageError:
        """Return what the user can do about a trial that the server refuses."""
        hint = "look at the manifest, or at --kubernetes"
        if error.status == 404 and self.kind == TRAIN_JOB:
            hint = "install Kubeflow Trainer, or give image=... for Jobs without it"
        elif error.status == 403:
            hint = "docs/kubernetes.md has the role that the tuner needs"
        return refused_as_usage(error, hint)

    def close(self) -> None:
        for name in sorted(self._left):
            try:
                self._ended(name, 1)
            except ApiError:
                continue

    def _queue(self) -> str | None:
        return self._given.queue or self.template.manifest.queue

    def _room(self, needs: Resources) -> int | None:
        """Return how many trials fit on the nodes side by side; None where these may not be listed."""
        try:
            nodes = self.cluster.items("/api/v1/nodes")
        except ApiError as error:
            if isinstance(error, ApiSilentError) or error.status != 403:
                raise
            return None
        rooms = [_num_gpus(node) // needs.gpus_per_node if needs.gpus_per_node else 1 for node in nodes]
        return most_gangs(rooms, needs.nodes)

    def _persistently(self, folder: Path) -> list[Json]:
        """Return the objects of a trial's folder, waiting for a server that does not answer."""
        deadline = time.monotonic() + faults.DEFAULT_PATIENCE_S
        while True:
            try:
                return self.cluster.items(self.view.jobs_path, labelSelector=f"{TRIAL_LABEL}={digest(folder)}")
            except ApiSilentError as error:
                if time.monotonic() > deadline:
                    problem = "a trial that a killed tuner left may still run, and must not be started twice"
                    hint = "resume once the API server answers again"
                    raise UsageError(f"{problem}, but {error}", hint=hint) from error
                time.sleep(1.0)
            except ApiError as error:
                raise self.refused(error) from error


def _num_gpus(node: Json) -> int:
    if node.get("spec", {}).get("unschedulable"):
        return 0
    amounts = (node.get("status") or {}).get("allocatable") or {}
    return sum(int(amount) for name, amount in amounts.items() if name.endswith("/gpu") and str(amount).isdecimal())
