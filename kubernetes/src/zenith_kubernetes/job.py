"""One trial as a TrainJob or a Job: created once, followed through its pods, and taken away on every way out."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from zenith_kubernetes.api import ApiError, ApiSilentError
from zenith_kubernetes.log import PodLog
from zenith_kubernetes.manifest import JOB, JobManifest, Json
from zenith_kubernetes.pods import Pod, trainer_pods
from zenith_kubernetes.trial import new_name
from zenith_kubernetes.view import Snapshot
from zenith_kubernetes.waiting import WaitingReasons
from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.runners.base import End, Job, JobRequest, JobResult
from zenith_tune.runners.launch.gang import GangLog
from zenith_tune.study.files import write_json

if TYPE_CHECKING:
    from zenith_kubernetes.runner import KubernetesRunner

_AFTER_FAILURE_S = 10.0
"""How long the other pods have to end by themselves, and to print why, when the command failed in one."""
_AFTER_SIGNAL_S = 2.0
"""How long after a signal killed a command its node may take to be known as lost."""
_SIGNALLED = (129, 137, 143)
_LOG_S = 60.0
"""How long the rest of a log is waited for, once the server answers."""
_END_S = 90.0
"""How long the end of a trial's pods is waited for."""
_FAILED_S = 5.0
_REASONS_EVERY = 5
"""How many looks at the trials go by before one at what a trial waits for."""
_PAUSE_S = 0.1


class KubernetesJob(Job):
    """One TrainJob or Job, judged by its pods."""

    runner: KubernetesRunner

    def __init__(self, runner: KubernetesRunner, request: JobRequest, found: Json | None = None) -> None:
        """Create the object; or follow the one that was `found`."""
        self.needs = runner.needs(request.resources)
        if found is not None:
            nodes = JobManifest.of(found).nodes or 1
            self.needs = self.needs.given(nodes=nodes) if self.needs.gpus_per_node is None else self.needs
        self._found = found
        self.name = found["metadata"]["name"] if found is not None else new_name(request.folder)
        self._created_at: float | None = time.monotonic() - 1 if found is not None else None
        self._manifest: JobManifest | None = None
        self._needs_service = False
        self._tried_at = float("-inf")
        self._pods: dict[str, Pod] = {}
        """The pods that were seen to run, by their names."""
        self._logs: dict[str, PodLog] = {}
        self._failed_at: float | None = None
        self._hopeless_at: float | None = None
        self._over_at: float | None = None
        self._ended: JobResult | None = None
        """How it ended, while the rest of its log is waited for."""
        self._state = ""
        self._reasons = WaitingReasons(runner.cluster, _REASONS_EVERY * runner.poll_s)
        super().__init__(runner, request)

    def start(self) -> None:
        self._is_asked, self._is_done = threading.Event(), threading.Event()
        self._outcome: JobResult | None = None
        self._error: Exception | None = None
        # Those of a run before this one are no part of it.
        self._file = self.files.log.open("ab" if self._found is None else "wb", buffering=0)
        self._gang: GangLog | None = None
        try:
            if self._found is None:
                self._note()
                self._create()
        except BaseException:
            self._file.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"trial-{self.name}", daemon=True)
        self._thread.start()

    def look(self) -> JobResult | None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._outcome

    def pause(self, limit_s: float) -> None:
        self._is_done.wait(max(min(limit_s, _PAUSE_S), 0.0))

    def _run(self) -> None:
        try:
            while (outcome := self._step()) is None:
                if self._is_asked.wait(self.runner.poll_s):
                    return
            self._outcome = outcome
        except Exception as error:  # whoever waits would wait for ever
            self._error = error
        self._is_done.set()

    def _step(self) -> JobResult | None:
        """Take in what the server shows now; returns how the job ended, once its log is here and its pods are gone."""
        if self._created_at is None and not self._create():
            return None
        for log in self._logs.values():
            if log.error is not None:
                self._error, log.error = log.error, None
        if self._ended is not None:
            return self._close() if self._has_log() else None
        seen = self.runner.view.look()
        if seen is None:
            self._report(f"the API server does not answer ({self.runner.view.silence}): waiting for it")
            return None
        if seen.at <= (self._created_at or 0.0):
            return None
        if self._needs_service:
            self._create_service()
        if (ended := self._judged(seen)) is None:
            return None
        self._ended, self._over_at = ended, time.monotonic()
        return self._close() if ended.end is not End.EXITED or self._has_log() else None

    def kill(self, end: End) -> JobResult:
        self._is_asked.set()
        self._thread.join()
        if self._outcome is not None:
            return self._outcome
        ran_s, nodes = self.ran_s(), self._place()
        if self._created_at is not None or not self._never_created():
            self.runner.end(self.name, self.request.on_state)
        for log in self._logs.values():
            log.finish(5.0)
        self._finish_log()
        return JobResult(end=end, exit_code=None, duration_s=ran_s, place=nodes)

    def _create(self) -> bool:
        """Create the object, once; False where that has to wait."""
        if time.monotonic() - self._tried_at < self.runner.poll_s:
            return False
        self._tried_at = time.monotonic()
        self._manifest = self._manifest or self.runner.template.trial(
            self.name, self.files.path, self.request.command, self.needs
        )
        try:
            made = self.runner.cluster.create(self.runner.view.jobs_path, self._manifest.document)
        except ApiSilentError as error:
            self._report(f"the API server does not answer ({error}): waiting for it")
            return False
        except ApiError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                # The answer to an earlier call was lost: nobody else has this name.
                made = self.runner.cluster.get(f"{self.runner.view.jobs_path}/{self.name}")
            elif error.status == 403 and "exceeded quota" in str(error):
                self._report(f"pending (quota: {error})")
                return False
            else:
                raise self.runner.refused(error) from error
        self._created_at = time.monotonic()
        self._uid = str(made["metadata"]["uid"])
        self._needs_service = self.runner.kind == JOB and self.needs.nodes > 1
        if self._needs_service:
            self._create_service()
        return True

    def _create_service(self) -> None:
        """Create what the pods of a Job find one another by; it goes with the Job."""
        body = self.runner.template.service(self.name, self._uid)
        try:
            self.runner.cluster.create(self.runner.cluster.path("services"), body)
        except ApiSilentError:
            return
        except ApiError as error:
            if error.status != 409:
                raise self.runner.refused(error) from error
        self._needs_service = False

    def _never_created(self) -> bool:
        """Tell whether no call to create it was ever sent."""
        return self._tried_at == float("-inf")

    def _judged(self, seen: Snapshot) -> JobResult | None:
        """Return how the trial ended, by what the server shows of it; None while it waits or runs."""
        shown = seen.objects.get(self.name)
        pods = trainer_pods(seen.pods.get(self.name, []), self.runner.container)
        missing = [pod for name, pod in self._pods.items() if name not in {each.name for each in pods}]
        self._follow([pod for pod in pods if pod.is_started])
        for pod in pods:
            if pod.is_started:
                self._pods[pod.name] = pod
        if lost := next((pod for pod in pods if pod.lost), None):
            return self._lost(lost.node, f"pod {lost.name} on {lost.node or 'no node yet'} was lost: {lost.lost}")
        codes = {pod.rank: pod.exit_code for pod in self._pods.values() if pod.exit_code is not None}
        failed = [code for code in codes.values() if code]
        if failed and self._failed_at is None:
            self._failed_at = time.monotonic()
        failed_s = time.monotonic() - (self._failed_at or time.monotonic())
        is_settled = failed_s > _AFTER_SIGNAL_S or not any(code in _SIGNALLED for code in failed)
        running = any(pod.exit_code is None for pod in pods if pod.is_started)
        is_over = len(codes) >= self.needs.nodes or bool(failed and not running)
        if (is_over and is_settled) or (failed and failed_s > _AFTER_FAILURE_S):
            return self._exited(failed[0] if failed else 0)
        gone = [pod for pod in missing if pod.exit_code is None]
        gone += [pod for pod in pods if pod.is_going and pod.is_started and pod.exit_code is None]
        if shown is None:
            return self._over(End.REVOKED, reason=f"somebody deleted {self.runner.kind} {self.name}")
        if gone and not failed:
            why = "Kueue preempted it" if shown["spec"].get("suspend") else "it was deleted"
            return self._lost(gone[0].node, f"pod {gone[0].name} on {gone[0].node} was lost: {why}")
        if not any(pod.is_started for pod in pods) and (why := self._failure(shown)):
            return self._over(End.REVOKED, reason=f"{self.runner.kind} {self.name} failed: {why}")
        self._wait_or_run(shown, pods)
        return None

    def _failure(self, shown: Json) -> str:
        """Return why an object without pods has failed, such as by a deadline of its own; it may still get them."""
        conditions = (shown.get("status") or {}).get("conditions") or []
        found = [each for each in conditions if each["type"] == "Failed" and each["status"] == "True"]
        self._failed_at = (self._failed_at or time.monotonic()) if found else self._failed_at
        if not found or time.monotonic() - (self._failed_at or 0.0) < _FAILED_S:
            return ""
        return f"{found[0].get('reason')}: {found[0].get('message')}"[:300]

    def _wait_or_run(self, shown: Json, pods: list[Pod]) -> None:
        """Report what it waits for or where it runs; raise where that will not come."""
        num_started = sum(pod.is_started for pod in pods)
        if num_started >= self.needs.nodes:
            if self.began is None:
                self.began = time.monotonic()
            return self._report(f"running on {self._place()}")
        hopeless = next((pod for pod in pods if pod.hopeless), None)
        self._hopeless_at = (self._hopeless_at or time.monotonic()) if hopeless else None
        if hopeless and time.monotonic() - (self._hopeless_at or 0.0) > self.runner.image_timeout_s:
            problem = (
                f"pod {hopeless.name} could not start within {self.runner.image_timeout_s:g} s: {hopeless.hopeless}"
            )
            raise SystemFaultError(f"{problem}: see to it and continue with --resume; no trial is lost")
        why = (hopeless.hopeless if hopeless else "") or next((pod.waits_for for pod in pods if pod.waits_for), "")
        why = why or self._reasons.of(shown, has_pods=bool(pods))
        started = f"{num_started} of {self.needs.nodes} pods started; " if num_started else ""
        return self._report(f"pending ({started}{why or 'its pods are starting'})")

    def _follow(self, pods: list[Pod]) -> None:
        """Bring the logs of these pods here, once all have a number."""
        if self._gang is None and len(pods) < self.needs.nodes and not any(pod.exit_code is not None for pod in pods):
            return
        if self._gang is None:
            names = {pod.rank: pod.node or pod.name for pod in pods}
            ranks = range(max(self.needs.nodes, 1 + max(names, default=0)))
            self._gang = GangLog([names.get(rank, f"pod {rank}") for rank in ranks], self._file.write)
        gang = self._gang
        for pod in pods:
            if pod.name not in self._logs and pod.rank < max(self.needs.nodes, 1):

                def write(text: bytes, rank: int = pod.rank) -> None:
                    gang.feed(rank, text)

                self._logs[pod.name] = PodLog(self.runner.cluster, pod, write)

    def _has_log(self) -> bool:
        """Tell whether all that was printed is here, or has been waited for long enough."""
        is_here = [log.finish(0.0) for log in self._logs.values()]
        if self.runner.view.look() is None:
            self._over_at = time.monotonic()
        return all(is_here) or time.monotonic() - (self._over_at or 0.0) > _LOG_S

    def _close(self) -> JobResult:
        """Note how it ended, and take it away."""
        assert self._ended is not None
        if self._ended.end is not End.EXITED:
            self.runner.end(self.name, self.request.on_state)
            for log in self._logs.values():
                log.finish(1.0)
        self._finish_log()
        if self._ended.end is End.EXITED:
            with contextlib.suppress(OSError):  # a tuner that resumes without it runs the trial again
                self._note(exit_code=self._ended.exit_code, duration_s=self._ended.duration_s, place=self._ended.place)
        self.runner.end(self.name, self.request.on_state)
        return self._ended

    def _finish_log(self) -> None:
        for log in self._logs.values():
            log.abandon()
        if self._gang is not None and not self._file.closed:
            for rank in range(max(self.needs.nodes, 1)):
                self._gang.close(rank)
        self._file.close()

    def _exited(self, code: int) -> JobResult:
        notes = [pod.note for pod in self._pods.values() if pod.note]
        return self._over(End.EXITED, code=code, reason=notes[0] if notes else "")

    def _lost(self, node: str, reason: str) -> JobResult:
        return JobResult(end=End.LOST, exit_code=None, duration_s=self.ran_s(), place=node, reason=reason)

    def _over(self, end: End, *, code: int | None = None, reason: str = "") -> JobResult:
        return JobResult(end=end, exit_code=code, duration_s=self.ran_s(), place=self._place(), reason=reason)

    def _place(self) -> str:
        pods = sorted(self._pods.values(), key=lambda pod: pod.rank)
        return ",".join(dict.fromkeys(pod.node for pod in pods if pod.node))

    def _report(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self.request.on_state(state)

    def _note(self, **more: object) -> None:
        noted = {"runner": "kubernetes", "kind": self.runner.kind, "name": self.name}
        write_json(self.files.job, {**noted, "namespace": self.runner.cluster.namespace, **more})


def refused_as_usage(error: ApiError, hint: str) -> UsageError:
    """Return what the user can do about an object that the server refuses."""
    return UsageError(f"kubernetes: the API server refuses a trial ({error})", hint=hint)
