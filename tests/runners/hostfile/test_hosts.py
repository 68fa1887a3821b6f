"""The examples of hosts."""

from __future__ import annotations

from zenith_tune.runners.hostfile.hosts import HostPool
from zenith_tune.study.resources import Resources


def test_hosts_are_given_out_whole() -> None:
    pool = HostPool({"n1": 8, "n2": 8, "n3": 4})
    assert pool.take(Resources(nodes=2, gpus_per_node=8)) == ["n1", "n2"]
    assert pool.take(Resources(gpus_per_node=8)) is None
    assert pool.take(Resources()) == ["n3"]
