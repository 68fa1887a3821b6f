"""The API server: objects as it sends them, and errors that say whether waiting may help."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from zenith_kubernetes.manifest import VERSIONS, JobManifest, Json
from zenith_tune.errors import UsageError

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that is busy or not up: the same call may succeed a little later."""
_LOG_SILENCE_S = 60.0
"""How long a followed log may be silent before it is asked for again: the other end may be gone for good."""
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ApiError(Exception):
    """A refusal of the API server."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class ApiSilentError(ApiError):
    """No answer, or one that does not hold for ever."""


class Cluster:
    """One namespace of a cluster, by a kubeconfig or by the service account of the pod around."""

    def __init__(
        self,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        call_timeout_s: float = 10.0,
    ) -> None:
        from kubernetes import client, config  # not at the top: it costs most of a second

        self._configuration = client.Configuration()
        self._timeout_s = call_timeout_s
        found = [Path(each).expanduser() for each in os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)]
        is_inside = not kubeconfig and not context and "KUBERNETES_SERVICE_HOST" in os.environ
        try:
            if is_inside and not any(path.is_file() for path in found):
                config.load_incluster_config(client_configuration=self._configuration)
                own = (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            else:
                file = str(Path(kubeconfig).expanduser()) if kubeconfig else None
                config.load_kube_config(file, context=context, client_configuration=self._configuration)
                contexts, active = config.list_kube_config_contexts(file)
                chosen = next((each for each in contexts if each["name"] == context), active)
                own = chosen.get("context", {}).get("namespace")
        except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
            hint = "see that `kubectl get pods` works, or give kubeconfig=FILE"
            raise UsageError(f"kubernetes: no cluster is configured ({error})", hint=hint) from error
        self.namespace: str = namespace or own or "default"
        self._pool: urllib3.PoolManager = client.ApiClient(self._configuration).rest_client.pool_manager

    def get(self, path: str, **query: Any) -> Json:
        return self._json("GET", path, query)

    def items(self, path: str, **query: Any) -> list[Json]:
        """Return the objects of a list."""
        found: list[Json] = self.get(path, **query).get("items") or []
        return found

    def create(self, path: str, body: Mapping[str, Any], **query: Any) -> Json:
        return self._json("POST", path, query, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Merge fields into an object; a `resourceVersion` among them refuses where it has changed meanwhile."""
        return self._json("PATCH", path, {}, body, "application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Delete an object; one that is not there is no error."""
        try:
            self._json("DELETE", path, {}, body or {})
        except ApiError as error:
            if error.status != 404:
                raise

    def stream(self, path: str, **query: Any) -> Iterator[bytes]:
        """Yield what the server sends for as long as it sends."""
        response = self._call("GET", path, query, None, "", read_s=_LOG_SILENCE_S)
        try:
            yield from response.stream(64 * 1024)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiSilentError(_told(error)) from error
        finally:
            response.close()

    def path(self, kind: str, name: str = "", *, version: str = "v1") -> str:
        """Return the path of the namespace's objects of a kind in the plural, or of one of them."""
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{self.namespace}/{kind}" + (f"/{quote(name)}" if name else "")

    def job_path(self, job: JobManifest | str, name: str = "") -> str:
        """Return the path of the training jobs of a kind, or of one of them."""
        kind = job if isinstance(job, str) else job.kind
        version = VERSIONS[kind] if isinstance(job, str) else str(job.document["apiVersion"])
        return self.path(f"{kind.lower()}s", name, version=version)

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Json:
        response = self._call(method, path, query, body, kind, read_s=self._timeout_s)
        try:
            answer = json.loads(response.read())
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiSilentError(_told(error)) from error
        finally:
            response.release_conn()
        if not isinstance(answer, dict):
            raise ApiSilentError("the server answered with something that is no object")
        return answer

    def _call(
        self, method: str, path: str, query: Mapping[str, Any], body: Any, kind: str, *, read_s: float
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json, */*"}
        auth = self._configuration.auth_settings().get("BearerToken")  # asked each time: tokens are renewed
        if auth is not None:
            headers["authorization"] = str(auth["value"])
        if body is not None:
            headers["Content-Type"] = kind
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        url = self._configuration.host + path + (f"?{urlencode(words)}" if words else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=self._timeout_s, read=read_s),
                retries=False,
                preload_content=False,
            )
            if response.status < 400:
                return response
            text = response.read(64 * 1024)
            response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiSilentError(_told(error)) from error
        raise _refusal(response.status, text)


def _refusal(status: int, text: bytes) -> ApiError:
    try:
        answer = json.loads(text)
        message, reason = str(answer["message"]), str(answer.get("reason") or "")
    except (ValueError, KeyError, TypeError):
        message, reason = text.decode(errors="replace"), ""
    message = " ".join(message.split())[:600] or f"status {status}"
    return (ApiSilentError if status in _PASSING else ApiError)(message, status, reason)


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
