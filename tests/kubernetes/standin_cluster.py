"""A cluster of stand-ins on this machine: its API server, its controllers and its nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.controllers import JobController, TrainJobController
from tests.kubernetes.kubelet import Kubelet
from zenith_kubernetes.api import Cluster
from zenith_kubernetes.runner import KubernetesRunner

NAMESPACE = "team-a"


class StandInCluster:
    """A namespace of a cluster of stand-ins."""

    def __init__(self, folder: Path, nodes: dict[str, int] | None = None) -> None:
        self.server = ApiServer()
        self.kubeconfig = folder / "kubeconfig.yaml"
        self.kubeconfig.write_text(json.dumps(kubeconfig(self.server.url)))
        self.cluster = Cluster(kubeconfig=str(self.kubeconfig))
        nodes = nodes or {"n1": 8, "n2": 8}
        for name, num in nodes.items():
            amounts = {"status": {"allocatable": {"nvidia.com/gpu": str(num)}}}
            self.server.create("/api/v1", "nodes", "", {"metadata": {"name": name}, **amounts})
        self.kubelet = Kubelet(self.cluster, folder, nodes)
        self.server.logs = self.kubelet.log
        self._controllers = [JobController(self.cluster, self.server), TrainJobController(self.cluster)]

    def runner(self, **given: Any) -> KubernetesRunner:
        return KubernetesRunner(**{"kubeconfig": str(self.kubeconfig), "poll_s": 0.05, "grace_s": 1.0, **given})

    def left(self) -> list[str]:
        """Return the names of what is there besides the nodes and the events."""
        kinds = ("pods", "jobs", "trainjobs", "services")
        return [each["metadata"]["name"] for kind in kinds for each in self.server.all(kind)]

    def close(self) -> None:
        self.kubelet.close()
        for each in self._controllers:
            each.close()
        self.server.stop()


def kubeconfig(url: str, **user: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "me", "user": {"token": "secret", **user}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}}],
    }
