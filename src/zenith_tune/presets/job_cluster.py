"""The GPUs of a job that is planned: of this machine or of a cluster that is named, as many as the command takes."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.describe.cluster_catalog import LOCAL, load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.errors import UsageError


def job_cluster(named: str | None, num_gpus: int) -> ClusterSpec:
    """Return the cluster, with as many of its GPUs as the command trains on."""
    try:
        cluster = load_cluster(named or LOCAL)
    except UsageError as error:
        if named is not None:
            raise
        law = str(error).rpartition(": ")[0]
        raise UsageError(f"{law}: give --args cluster=h100x{num_gpus}, or the path of a file") from None
    if cluster.num_gpus >= num_gpus:
        name = cluster.name if cluster.num_gpus == num_gpus else f"{cluster.gpu.name}x{num_gpus}"
        return replace(cluster, num_gpus=num_gpus, name=name)
    if named is not None:
        law = f"cluster must have the {num_gpus} GPUs that the command trains on, but {cluster.name} has fewer"
        raise UsageError(f"{law}: give cluster={cluster.gpu.name}x{num_gpus}")
    from zenith_tune.planning.what_if import resized

    return resized(cluster, num_gpus)
