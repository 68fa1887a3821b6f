"""A training job as a manifest: read from the user's YAML or the cluster, changed, and made where there is none."""

from __future__ import annotations

import copy
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

Json = dict[str, Any]

TRAIN_JOB, JOB = "TrainJob", "Job"
GROUPS = {TRAIN_JOB: "trainer.kubeflow.org", JOB: "batch"}
VERSIONS = {TRAIN_JOB: "trainer.kubeflow.org/v1alpha1", JOB: "batch/v1"}
RUNTIME = "torch-distributed"
"""The ClusterTrainingRuntime that Kubeflow Trainer installs for torchrun."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
NVIDIA_GPU = "nvidia.com/gpu"
_MOST_BYTES = 4 * 2**20
_OF_THE_SERVER = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "finalizers"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_OF_THE_PODS = ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name")
"""The labels by which a Job knows its own pods."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHELLS = ("sh", "bash", "dash", "zsh")
_REFERENCE = re.compile(r"\$\$|\$\((\w[\w.-]*)\)", re.ASCII)
_SHELL_SYNTAX = re.compile(r"[$`|&;<>(){}*?\n~#]|^\w+=")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManifest:
    """A TrainJob or a Job; what changes it returns another one, and what it does not know stays as it is."""

    document: Json
    container: str | None = None
    """The container of a Job that trains; None: the first one."""

    @classmethod
    def read(cls, path: Path | str, container: str | None = None) -> JobManifest:
        """Read the one training job of a file, which may hold other objects as well."""
        try:
            data = read_regular(Path(path).expanduser(), _MOST_BYTES)
        except OSError as error:
            raise UsageError(f"the manifest cannot be read: {error.strerror}: {path}") from None
        try:
            documents = [*yaml.safe_load_all(data)]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{path} is no YAML manifest ({first})") from None
        found = [each for each in _flat(documents) if is_training_job(each)]
        if len(found) != 1:
            problem = f"a manifest must have one TrainJob ({VERSIONS[TRAIN_JOB]}) or Job ({VERSIONS[JOB]})"
            kinds = ", ".join(str(each.get("kind")) for each in _flat(documents)) or "no object"
            raise UsageError(f"{problem}, but {path} has {kinds}", hint="give a file with the job that trains")
        return cls.of(found[0], container, where=str(path))

    @classmethod
    def of(cls, document: Mapping[str, Any], container: str | None = None, where: str = "the manifest") -> JobManifest:
        """Return the manifest of an object, without what only the server writes."""
        own: Json = copy.deepcopy({**document})
        own.pop("status", None)
        made = cls(document=own, container=container)
        try:
            metadata = own.setdefault("metadata", {})
            for name in _OF_THE_SERVER:
                metadata.pop(name, None)
            (metadata.get("annotations") or {}).pop(_LAST_APPLIED, None)
            if made.kind == JOB and not own["spec"].get("manualSelector"):
                own["spec"].pop("selector", None)
                for label in _OF_THE_PODS:
                    ((own["spec"]["template"].get("metadata") or {}).get("labels") or {}).pop(label, None)
            trainer = made._trainer()  # a shape that is none is reported now
            made._gpus()
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            shape = "spec.trainer" if made.kind == TRAIN_JOB else "spec.template.spec.containers"
            also = f" with a container {container}" if container else ""
            raise UsageError(f"{where} must have {shape}{also} of a {made.kind}, but has not") from None
        for name in ("command", "args"):
            words = trainer.get(name) or []
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise UsageError(f"{where}: {name} must be a list of words, but is {words!r:.100}")
        if made.nodes is not None and (type(made.nodes) is not int or made.nodes < 1):
            raise UsageError(f"{where}: the number of nodes must be a whole number above 0, but is {made.nodes!r:.100}")
        return made

    @classmethod
    def train_job(cls, *, name: str, runtime: str = RUNTIME) -> JobManifest:
        """Return a TrainJob that only names its runtime."""
        spec = {"runtimeRef": {"name": runtime}, "trainer": {}}
        return cls(document=_object(TRAIN_JOB, name, spec))

    @classmethod
    def job(cls, *, name: str, image: str) -> JobManifest:
        """Return an indexed Job of one container with an image."""
        pod = {"containers": [{"name": "trainer", "image": image}], "restartPolicy": "Never"}
        return cls(document=_object(JOB, name, {"template": {"spec": pod}}))

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        """The object's name; empty where the server is to give it one."""
        return str(self._metadata().get("name") or "")

    @property
    def namespace(self) -> str | None:
        return self._metadata().get("namespace")

    @property
    def labels(self) -> dict[str, str]:
        return {**(self._metadata().get("labels") or {})}

    @property
    def annotations(self) -> dict[str, str]:
        return {**(self._metadata().get("annotations") or {})}

    @property
    def queue(self) -> str | None:
        """The queue of Kueue that it waits in."""
        return self.labels.get(QUEUE_LABEL)

    @property
    def is_suspended(self) -> bool:
        return bool(self.document.get("spec", {}).get("suspend"))

    @property
    def runtime(self) -> str | None:
        """The training runtime that a TrainJob names."""
        reference: Json = self.document["spec"].get("runtimeRef") or {}
        return reference.get("name")

    @property
    def image(self) -> str | None:
        return self._trainer().get("image")

    @property
    def environment(self) -> dict[str, str]:
        """The variables that are written out in it; those from secrets and fields are left out."""
        variables = self._trainer().get("env") or []
        return {each["name"]: str(each["value"]).replace("$$", "$") for each in variables if "value" in each}

    @property
    def nodes(self) -> int | None:
        """How many pods train side by side, where it says so."""
        spec: Json = self.document["spec"]
        named = self._trainer().get("numNodes") if self.kind == TRAIN_JOB else spec.get("completions")
        return named or spec.get("parallelism")

    @property
    def gpus_per_node(self) -> int | None:
        resource, amount = self._gpus()
        return None if not resource or not _NUMBER.fullmatch(amount) else int(amount)

    @property
    def command(self) -> str | None:
        """What it runs, as a line or a script of a shell; None where the runtime or the image says what."""
        trainer = self._trainer()
        words = [*(trainer.get("command") or []), *(trainer.get("args") or [])]
        if not trainer.get("command") and not words:
            return None
        names = {str(each["name"]) for each in trainer.get("env") or []}
        is_script = len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS
        if is_script and re.fullmatch(r"-[a-z]*c", words[1]):
            return _as_shell(words[2], names)
        return " ".join(_as_word(word, names) for word in words)

    def renamed(self, name: str, namespace: str | None = None) -> JobManifest:
        """Return the same under another name."""
        return self._changed(lambda made: _rename(made._metadata(), name, namespace))

    def labelled(
        self, labels: Mapping[str, str | None] | None = None, annotations: Mapping[str, str | None] | None = None
    ) -> JobManifest:
        """Return the same with these labels and annotations; None takes one away."""

        def label(made: JobManifest) -> None:
            for kind, given in (("labels", labels), ("annotations", annotations)):
                merged = {**(made._metadata().get(kind) or {}), **(given or {})}
                made._metadata()[kind] = {name: text for name, text in merged.items() if text is not None}

        return self._changed(label)

    def suspended(self, is_suspended: bool) -> JobManifest:
        """Return the same, to wait or to start."""
        return self._changed(lambda made: made.document["spec"].update(suspend=is_suspended))

    def with_image(self, image: str) -> JobManifest:
        return self._changed(lambda made: made._trainer().update(image=image))

    def with_argv(self, argv: Iterable[str]) -> JobManifest:
        """Return the same with another command, word by word as the container's process gets them."""
        words = [word.replace("$", "$$") for word in argv]  # Kubernetes would take $(NAME) for a reference

        def put(made: JobManifest) -> None:
            made._trainer().update(command=words)
            made._trainer().pop("args", None)

        return self._changed(put)

    def with_command(self, command: str) -> JobManifest:
        """Return the same with another line or script, run by a shell where it needs one."""
        own = self._trainer().get("command") or []
        shell = own[:2] if len(own) > 1 and own[0].rpartition("/")[2] in _SHELLS else ["sh", "-c"]
        return self.with_argv(plain_words(command) or [*shell, command])

    def with_environment(self, variables: Mapping[str, str]) -> JobManifest:
        """Return the same with these variables in place of those of their names."""

        def put(made: JobManifest) -> None:
            kept = [each for each in made._trainer().get("env") or [] if each.get("name") not in variables]
            added = [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]
            made._trainer()["env"] = [*kept, *added]

        return self._changed(put)

    def sized(self, nodes: int, gpus_per_node: int | None, resource: str = NVIDIA_GPU) -> JobManifest:
        """Return the same on so many nodes, with so many GPUs of each where that is given."""

        def size(made: JobManifest) -> None:
            spec = made.document["spec"]
            if made.kind == TRAIN_JOB:
                made._trainer()["numNodes"] = nodes
                if gpus_per_node is not None and isinstance(made._trainer().get("numProcPerNode"), int):
                    made._trainer()["numProcPerNode"] = gpus_per_node
            else:
                spec.update(parallelism=nodes, completions=nodes, completionMode="Indexed")
            if gpus_per_node is not None:
                own, amount = made._gpus()
                if amount == str(gpus_per_node):
                    return
                for kind in ("limits", "requests"):
                    amounts = made._resources().get(kind)
                    if kind == "limits" or (amounts and own in amounts):
                        made._resources().setdefault(kind, {})[own or resource] = str(gpus_per_node)

        return self._changed(size)

    def with_memory(self, gib: int) -> JobManifest:
        """Return the same whose pods ask for at least so much memory, which their limit allows."""

        def put(made: JobManifest) -> None:
            requests = made._resources().setdefault("requests", {})
            for amounts in (requests, made._resources().get("limits") or {}):
                if _bytes(amounts.get("memory", 0 if amounts is requests else math.inf)) < gib * 2**30:
                    amounts["memory"] = f"{gib}Gi"

        return self._changed(put)

    def as_yaml(self) -> str:
        return as_yaml(self.document)

    def changed_spec(self, **fields: Any) -> JobManifest:
        """Return the same with these fields of its spec."""
        return self._changed(lambda made: made.document["spec"].update(fields))

    def changed_pod(self, **fields: Any) -> JobManifest:
        """Return a Job whose pods have these fields."""
        return self._changed(lambda made: made.document["spec"]["template"]["spec"].update(fields))

    def _changed(self, change: Callable[[JobManifest], object]) -> JobManifest:
        made = JobManifest(document=copy.deepcopy(self.document), container=self.container)
        change(made)
        return made

    def _metadata(self) -> Json:
        found: Json = self.document["metadata"]
        return found

    def _trainer(self) -> Json:
        """Return the part with the image, the command and the variables of what trains."""
        spec: Json = self.document["spec"]
        if self.kind == TRAIN_JOB:
            found: Json = spec.setdefault("trainer", {})
            found.get("image")
            return found
        containers: list[Json] = spec["template"]["spec"]["containers"]
        fit = [each for each in containers if self.container in (None, each["name"])]
        return fit[0]

    def _resources(self) -> Json:
        name = "resourcesPerNode" if self.kind == TRAIN_JOB else "resources"
        found: Json = self._trainer().setdefault(name, {})
        return found

    def _gpus(self) -> tuple[str, str]:
        """Return the resource that its GPUs are and how many, both empty where it names none."""
        resources: Json = self._trainer().get("resourcesPerNode" if self.kind == TRAIN_JOB else "resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            for resource, amount in amounts.items():
                if resource.endswith("/gpu"):
                    return resource, str(amount)
        return "", ""


_Dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
"""It writes texts of several lines as they are."""
_Dumper.add_representer(
    str, lambda own, text: own.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


def as_yaml(document: Json) -> str:
    """Return an object, or a part of one, as people write it."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120)
    return text


def _bytes(quantity: object) -> float:
    """Return an amount of memory as Kubernetes writes it.

    >>> _bytes("1Ki"), _bytes("1.5k"), _bytes(7)
    (1024.0, 1500.0, 7.0)
    """
    match = re.fullmatch(r"([0-9.e]+|inf)([kKMGTPE]?)(i?)", str(quantity))
    if match is None:
        raise UsageError(f"an amount of memory is written as 64Gi, but got {quantity!r}: correct the manifest")
    unit: int = (1024 if match[3] else 1000) ** " KMGTPE".index(match[2].upper() or " ")
    return float(match[1]) * unit


def plain_words(command: str) -> list[str]:
    """Return the words of a command that needs no shell; none for any other.

    >>> plain_words("python -c 'a; b'"), plain_words("a; b")
    (['python', '-c', 'a; b'], [])
    """
    return [] if _SHELL_SYNTAX.search(re.sub(r"'[^']*'", "", command)) else shlex.split(command)


def is_training_job(document: Any) -> bool:
    """Tell whether an object is one that trials can be made of, of any version of its kind."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return False
    group, _, _ = str(document.get("apiVersion")).partition("/")
    return GROUPS.get(str(document.get("kind"))) == group


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}


def _rename(metadata: Json, name: str, namespace: str | None) -> None:
    metadata.pop("generateName", None)
    metadata["name"] = name
    if namespace is not None:
        metadata["namespace"] = namespace


def _flat(documents: Iterable[Any]) -> list[Json]:
    """Return the objects of a file, also those of a List."""
    found: list[Json] = []
    for each in documents:
        if isinstance(each, dict) and each.get("kind") == "List" and isinstance(each.get("items"), list):
            found += _flat(each["items"])
        elif isinstance(each, dict):
            found.append(each)
    return found


def _as_shell(text: str, names: set[str]) -> str:
    """Return a script as its shell gets it, with the variables that Kubernetes would fill in left to the shell.

    >>> _as_shell("echo $(WORLD) $(nproc) $$(date)", {"WORLD"})
    'echo ${WORLD} $(nproc) $(date)'
    """

    def read(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return f"${{{match[1]}}}" if match[1] in names else match[0]

    return _REFERENCE.sub(read, text)


def _as_word(word: str, names: set[str]) -> str:
    """Return a word of a command as a shell would be given it.

    >>> _as_word("--nodes=$(NODES)", {"NODES"}), _as_word("a b", set())
    ('"--nodes=${NODES}"', "'a b'")
    """
    text = _as_shell(word, names)
    if not any(match[1] in names for match in _REFERENCE.finditer(word)):
        return shlex.quote(text)
    escaped = re.sub(r'[\\`"]|\$(?!\{)', lambda match: "\\" + match[0], text)
    return f'"{escaped}"'
