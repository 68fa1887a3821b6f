"""The GPUs of a job that is planned: of this machine or of a cluster that is named, as many as the command takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster, names_one_node
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.gpu_catalog import match_gpu
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError


def job_cluster(named: str | None, num_gpus: int, topology: str | None = None) -> ClusterSpec:
    """Return the cluster, with as many of its GPUs as the command trains on.

    What nvidia-smi says of one node is said of each; `topology` is a file with that, which a cluster's links come from.
    """
    if topology is None:
        return _sized(named, num_gpus)
    from zenith_tune.describe.topology import read_topology, with_topology

    node = read_topology(Path(topology))
    # A file that lists its GPUs as well says their kind.
    machines = _sized(topology if named is None and names_one_node(topology) else named, num_gpus)
    return with_topology(machines, node, Path(topology).name)


def _sized(named: str | None, num_gpus: int) -> ClusterSpec:
    try:
        cluster = load_cluster(named or LOCAL)
    except UsageError as error:
        if named is not None:
            raise
        raise UsageError(error.problem, hint=f"give --cluster h100x{num_gpus}, or the path of a file") from None
    if cluster.num_gpus >= num_gpus:
        name = cluster.name if cluster.num_gpus == num_gpus else f"{cluster.gpu.name}x{num_gpus}"
        return replace(cluster, num_gpus=num_gpus, name=name)
    if named is not None and not names_one_node(named):
        problem = f"cluster must have the {num_gpus} GPUs that the command trains on, but {cluster.name} has fewer"
        raise UsageError(problem, hint=f"give --cluster {cluster.gpu.name}x{num_gpus}")
    from zenith_tune.planner.what_if import resized

    return resized(cluster, num_gpus)


def seen_cluster(named: str | None, num_gpus: int, topology: str | None, live_gpu: str | None) -> ClusterSpec:
    """Return the cluster; where none is named and this machine has no GPUs, those that their command ran on."""
    try:
        return job_cluster(named, num_gpus, topology)
    except UsageError:
        gpu = match_gpu(live_gpu) if live_gpu and named is None else None
        if gpu is None:
            raise
        return job_cluster(f"{gpu}x{num_gpus}", num_gpus, topology)


def job_model(name: str | None) -> ModelSpec:
    """Return a job's model, which may have to be asked for over the network, or raise why it is not known."""
    from zenith_tune.describe.model_catalog import load_model  # loaded only where a plan is made

    if name is None:
        hint = "give --model NAME, a Hugging Face id or the path of a config.json"
        raise UsageError("the model is not known: the command has no --model_name_or_path", hint=hint)
    return load_model(name)


MODEL_OPTIONS = ("--model-name-or-path", "--model-name", "--model", "--model-id")
SEQUENCE_OPTIONS = (
    *("--max-seq-length", "--max-seq-len", "--block-size", "--max-length", "--model-max-length"),
    *("--seq-length", "--seq-len", "--cutoff-len", "--seq"),
)
TRAINER_DEFAULT_BATCH = 8
"""The micro-batch of the Hugging Face Trainer where a command gives none."""


S = TypeVar("S")


class LookedUp(Generic[S]):
    """A value that is looked up when it is first asked for, or the reason why it is not known."""

    def __init__(self, look_up: Callable[[], S]) -> None:
        self._look_up = look_up
        self._found: S | UsageError | None = None

    def get(self) -> S | UsageError:
        """Return it, or why that is not known."""
        if self._found is None:
            try:
                self._found = self._look_up()
            except UsageError as error:
                self._found = error
        return self._found

    def required(self) -> S:
        """Return it, or raise why that is not known."""
        found = self.get()
        if isinstance(found, UsageError):
            raise UsageError(found.problem, hint=found.hint)
        return found
