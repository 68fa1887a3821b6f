"""Stand-ins for the controllers of a cluster: those of Jobs and of garbage, and Kubeflow's of TrainJobs."""

from __future__ import annotations

import contextlib
import copy
import secrets
import threading
from typing import Any

from tests.kubernetes.api_server import ApiServer
from zenith_kubernetes.api import ApiError, Cluster

Json = dict[str, Any]
_JOB_NAME = "batch.kubernetes.io/job-name"
_INDEX = "batch.kubernetes.io/job-completion-index"


class Controller:
    """A loop that brings a namespace closer to what its objects ask for."""

    def __init__(self, cluster: Cluster, pause_s: float = 0.05) -> None:
        self.cluster, self._pause_s = cluster, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def reconcile(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            with contextlib.suppress(ApiError):  # it comes again
                self.reconcile()


class TrainJobController(Controller):
    """Makes of a TrainJob what Kubeflow's controllers make of it by way of a JobSet: a Job of pods with its labels."""

    def reconcile(self) -> None:
        jobs = {each["metadata"]["name"]: each for each in self.cluster.items(self.cluster.job_path("Job"))}
        for each in self.cluster.items(self.cluster.job_path("TrainJob")):
            name, spec = each["metadata"]["name"], each["spec"]
            child = f"{name}-node-0"
            if "deletionTimestamp" in each["metadata"]:
                continue
            if child not in jobs:
                self.cluster.create(self.cluster.job_path("Job"), _job_of(each, child))
            elif jobs[child]["spec"].get("suspend", False) != spec.get("suspend", False):
                body = {"spec": {"suspend": spec.get("suspend", False)}}
                self.cluster.patch(self.cluster.job_path("Job", child), body)
            own = (jobs.get(child) or {}).get("status") or {}
            found = [cond for cond in own.get("conditions") or [] if cond["type"] in ("Complete", "Failed")]
            if found and not (each.get("status") or {}).get("conditions"):
                done = {
                    name: found[0].get(name, "")
                    for name in ("type", "status", "reason", "message", "lastTransitionTime")
                }
                path = f"{self.cluster.job_path('TrainJob', name)}/status"
                self.cluster.patch(
                    path, {"status": {"conditions": [{**done, "reason": done["reason"] or "JobsCompleted"}]}}
                )


class JobController(Controller):
    """Makes the pods of Jobs, judges Jobs by them, and takes away what belongs to something that goes."""

    def __init__(self, cluster: Cluster, server: ApiServer) -> None:
        self._server = server
        super().__init__(cluster)

    def reconcile(self) -> None:
        self._collect()
        for job in self.cluster.items(self.cluster.job_path("Job")):
            if "deletionTimestamp" not in job["metadata"]:
                self._attend(job)

    def _attend(self, job: Json) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        pods = self.cluster.items(self.cluster.path("pods"), labelSelector=f"{_JOB_NAME}={name}")
        own = {
            each["metadata"]["annotations"][_INDEX]: each
            for each in pods
            if "deletionTimestamp" not in each["metadata"]
        }
        if (job.get("status") or {}).get("conditions"):
            return
        if spec.get("suspend"):
            for each in own.values():
                self.cluster.delete(self.cluster.path("pods", each["metadata"]["name"]), {})
            return
        failed = [each for each in pods if (each.get("status") or {}).get("phase") == "Failed"]
        num = int(spec.get("completions", 1))
        if failed and spec.get("backoffLimit", 6) == 0:
            for each in own.values():
                if each["status"]["phase"] in ("Pending", "Running"):
                    self.cluster.delete(self.cluster.path("pods", each["metadata"]["name"]), {})
            self._end(name, "Failed", "BackoffLimitExceeded")
        elif len([each for each in pods if each["status"]["phase"] == "Succeeded"]) >= num:
            self._end(name, "Complete", "CompletionsReached")
        else:
            for index in map(str, range(num)):
                if index not in own:
                    self._create(job, index)

    def _create(self, job: Json, index: str) -> None:
        name, template = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
        metadata = template.get("metadata") or {}
        metadata["name"] = f"{name}-{index}-{secrets.token_hex(2)}"
        metadata["labels"] = {**(metadata.get("labels") or {}), _JOB_NAME: name, _INDEX: index}
        metadata["annotations"] = {_INDEX: index}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        metadata["ownerReferences"] = [owner]
        try:
            self.cluster.create(self.cluster.path("pods"), {"metadata": metadata, "spec": template["spec"]})
        except ApiError as error:
            event = {
                "metadata": {"generateName": f"{name}."},
                "reason": "FailedCreate",
                "message": f"Error creating: {error}",
                "involvedObject": {"kind": "Job", "name": name},
            }
            self.cluster.create(self.cluster.path("events"), event)

    def _end(self, name: str, kind: str, reason: str) -> None:
        done = {"type": kind, "status": "True", "reason": reason}
        self.cluster.patch(self.cluster.job_path("Job", name), {"status": {"conditions": [done]}})

    def _collect(self) -> None:
        """Take away what belongs to an object that goes or is gone, and then the object."""
        with self._server.lock:
            objects = dict(self._server.objects)
        owners = {each["metadata"]["uid"]: each for each in objects.values()}
        held = set()
        for (kind, namespace, name), each in objects.items():
            for owner in each["metadata"].get("ownerReferences") or []:
                found = owners.get(owner["uid"])
                if found is None or "deletionTimestamp" in found["metadata"]:
                    held.add(owner["uid"])
                    with contextlib.suppress(Exception):
                        if kind != "pods" or "deletionTimestamp" not in each["metadata"]:
                            self._server.delete((kind, namespace, name), {})
        for (kind, namespace, name), each in objects.items():
            is_going = kind in ("jobs", "trainjobs") and "deletionTimestamp" in each["metadata"]
            if is_going and each["metadata"]["uid"] not in held:
                self._server.remove(kind, namespace, name)


def _job_of(train_job: Json, name: str) -> Json:
    metadata, trainer = train_job["metadata"], train_job["spec"].get("trainer") or {}
    num = int(trainer.get("numNodes") or 1)
    env = [*(trainer.get("env") or []), {"name": "PET_NNODES", "value": str(num)}]
    address = f"{metadata['name']}-node-0-0.{metadata['name']}"
    env += [{"name": "PET_MASTER_ADDR", "value": address}, {"name": "PET_MASTER_PORT", "value": "29400"}]
    container = {
        "name": "node",
        "image": trainer.get("image") or "pytorch/pytorch",
        "command": trainer.get("command") or [],
        "args": trainer.get("args") or [],
        "env": env,
        "resources": trainer.get("resourcesPerNode") or {},
    }
    labels = {
        "jobset.sigs.k8s.io/jobset-name": metadata["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
    }
    owner = {
        "apiVersion": train_job["apiVersion"],
        "kind": "TrainJob",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "blockOwnerDeletion": True,
        "controller": True,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "ownerReferences": [owner], "labels": labels},
        "spec": {
            "parallelism": num,
            "completions": num,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "suspend": train_job["spec"].get("suspend", False),
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "restartPolicy": "Never"},
            },
        },
    }
