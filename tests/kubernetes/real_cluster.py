"""A real control plane on this machine: etcd, kube-apiserver and kube-controller-manager, with Kubeflow's TrainJob.

`tests/kubernetes/build_control_plane.sh` builds it into a folder, which KUBEBUILDER_ASSETS names. Nodes and Kubeflow's
controller are the stand-ins.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.kubernetes.controllers import TrainJobController
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.standin_cluster import NAMESPACE, kubeconfig
from tests.requirements import skip
from zenith_kubernetes.api import ApiError, Cluster
from zenith_kubernetes.runner import KubernetesRunner

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager")
_TOKEN = "secret"
_START_S = 180.0
_CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=here"),
    *("-addext", "subjectAltName=IP:127.0.0.1"),
)
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class RealCluster:
    """A namespace of a cluster whose API server and Job controller are the real ones."""

    def __init__(self, folder: Path, nodes: dict[str, int] | None = None) -> None:
        assets = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
        if missing := [name for name in PROGRAMS if not (assets / name).is_file()]:
            skip("kubernetes-api", f"{', '.join(missing)} is not in {assets} (KUBEBUILDER_ASSETS)")
        self._assets, self._folder = assets, folder
        self._ports = _free_ports(3)
        self.kubeconfig = folder / "kubeconfig.yaml"
        config = kubeconfig(f"https://127.0.0.1:{self._ports[0]}", token=_TOKEN)
        authority = {"insecure-skip-tls-verify": False, "certificate-authority": str(folder / "cert.pem")}
        config["clusters"][0]["cluster"] |= authority
        self.kubeconfig.write_text(json.dumps(config))
        (folder / "tokens.csv").write_text(f'{_TOKEN},me,1,"system:masters"\ntuner,tuner,2\n')
        subprocess.run(
            [*_CERTIFICATE, "-keyout", "key.pem", "-out", "cert.pem"],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._begin(nodes or {"n1": 8, "n2": 8})
        except BaseException:
            for name in PROGRAMS:
                self._end(name)
            raise

    def _begin(self, nodes: dict[str, int]) -> None:
        etcd, peers = (f"http://127.0.0.1:{port}" for port in self._ports[1:])
        self._start(
            "etcd",
            *("--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )
        self.start_server()
        self.cluster = Cluster(kubeconfig=str(self.kubeconfig))
        self._wait_until_ready()
        self._start(
            "kube-controller-manager",
            *("--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port=0"),
            *("--controllers", "job-controller,garbage-collector-controller,resourcequota-controller"),
        )
        self.kubelet = Kubelet(self.cluster, self._folder, nodes, pause_s=0.1)
        self._logs = self._serve_logs()
        self._fill(nodes)
        self._controller = TrainJobController(self.cluster, pause_s=0.1)

    def start_server(self) -> None:
        key = self._folder / "key.pem"
        self._start(
            "kube-apiserver",
            *("--etcd-servers", f"http://127.0.0.1:{self._ports[1]}", "--secure-port", str(self._ports[0])),
            *("--bind-address", "127.0.0.1", "--endpoint-reconciler-type", "none"),
            *("--tls-cert-file", str(self._folder / "cert.pem"), "--tls-private-key-file", str(key)),
            *("--token-auth-file", str(self._folder / "tokens.csv")),
            *("--service-account-issuer", "https://here", "--service-account-key-file", str(key)),
            *("--service-account-signing-key-file", str(key), "--service-cluster-ip-range", "10.0.0.0/24"),
            *("--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount"),
        )

    def stop_server(self) -> None:
        self._end("kube-apiserver")

    def as_tuner(self, rules: list[dict[str, Any]]) -> Path:
        """Return the kubeconfig of a user with these rights alone."""
        root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        self.cluster.create(f"{root}/roles", {"metadata": {"name": "tuner"}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tuner"}
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tuner"}]
        self.cluster.create(
            f"{root}/rolebindings", {"metadata": {"name": "tuner"}, "roleRef": role, "subjects": subjects}
        )
        config = json.loads(self.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = "tuner"
        own = self._folder / "tuner.yaml"
        own.write_text(json.dumps(config))
        return own

    def runner(self, **given: Any) -> KubernetesRunner:
        return KubernetesRunner(**{"kubeconfig": str(self.kubeconfig), "poll_s": 0.2, "grace_s": 1.0, **given})

    def left(self) -> list[str]:
        paths = [self.cluster.path("pods"), self.cluster.path("services")]
        paths += [self.cluster.job_path("Job"), self.cluster.job_path("TrainJob")]
        return [each["metadata"]["name"] for path in paths for each in self.cluster.items(path)]

    def close(self) -> None:
        self._controller.close()
        self.kubelet.close()
        self._logs.shutdown()
        self._logs.server_close()
        for name in reversed(PROGRAMS):
            self._end(name)

    def _start(self, name: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            argv = [str(self._assets / name), *options]
            self._processes[name] = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder)

    def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ApiError):
                if self.cluster.items("/apis/rbac.authorization.k8s.io/v1/clusterroles"):
                    return
            time.sleep(0.2)
        raise AssertionError((self._folder / "kube-apiserver.log").read_text()[-2000:])

    def _fill(self, nodes: dict[str, int]) -> None:
        """Create the namespace, the nodes and the kinds of Kubeflow."""
        for path in sorted((self._assets / "crds").glob("*.yaml")):
            self.cluster.create(_DEFINITIONS, yaml.safe_load(path.read_text()))
        self.cluster.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name, num in nodes.items():
            amounts = {"nvidia.com/gpu": str(num), "cpu": "64", "pods": "110"}
            status = {
                "capacity": amounts,
                "allocatable": amounts,
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.server_address[1]}},
            }
            self.cluster.create("/api/v1/nodes", {"metadata": {"name": name}})
            self.cluster.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:  # the new kinds are served a moment later
            with contextlib.suppress(ApiError):
                self.cluster.items(self.cluster.job_path("TrainJob"))
                return
            time.sleep(0.2)
        raise AssertionError("TrainJob is not served: are its definitions in the folder crds?")

    def _serve_logs(self) -> ThreadingHTTPServer:
        kubelet = self.kubelet

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                match = re.fullmatch(r"/containerLogs/[^/]+/([^/]+)/([^/]+)", url.path)
                assert match is not None, self.path
                query = {name: texts[-1] for name, texts in parse_qs(url.query).items()}
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    for chunk in kubelet.log(match[1], match[2], query):
                        self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *args: object) -> None:
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "cert.pem", self._folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True, name=f"logs-{uuid.uuid4().hex[:4]}").start()
        return server


def _free_ports(num: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
