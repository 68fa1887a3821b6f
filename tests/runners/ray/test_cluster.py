from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest

from tests.requirements import need_module
from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.gang import most_gangs
from zenith_tune.runners.ray.cluster import check_address, named_nodes
from zenith_tune.runners.ray.runner import RayRunner
from zenith_tune.study.resources import Resources


def row(node_id: str, address: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": node_id, "NodeManagerAddress": address, "Alive": True, "Resources": resources}


def test_nodes_are_named_by_their_address_unless_several_share_it() -> None:
    rows = [row("abcdef01", "10.0.0.1", GPU=8.0), row("12345678", "10.0.0.1"), row("99", "10.0.0.2", CPU=4.0)]
    nodes = named_nodes(rows)
    assert [node.name for node in nodes] == ["10.0.0.1#abcdef", "10.0.0.1#123456", "10.0.0.2"]
    assert [(node.num_gpus, node.num_cpus) for node in nodes] == [(8.0, 0.0), (0.0, 0.0), (0.0, 4.0)]


@pytest.mark.parametrize(
    ("rooms", "nodes", "gangs"), [([], 1, 0), ([1], 2, 0), ([8, 8, 8, 8], 4, 8), ([3, 1, 1], 2, 2), ([9, 9, 1], 3, 1)]
)
def test_as_many_gangs_fit_as_have_nodes_of_their_own_each(rooms: list[int], nodes: int, gangs: int) -> None:
    assert most_gangs(rooms, nodes) == gangs


def test_an_address_where_nobody_listens_is_refused_in_one_line_and_at_once() -> None:
    need_module("engines", "ray")
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"{address}.*refused") as caught:
            RayRunner(address=address).prepare(Resources())
    assert "\n" not in str(caught.value) and "--ray-address" in caught.value.hint


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_a_number_of_cpus_that_is_none_is_refused(number: float) -> None:
    with pytest.raises(UsageError, match=f"cpus_per_node.*{number:g}"):
        RayRunner(cpus_per_node=number)


@pytest.mark.parametrize(
    "address", ["", ":::x", "foo:bar", "host", "host:0", "host:65536", "ray://", "a b:1", "host:6379 x"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"auto, HOST:PORT or ray://HOST:PORT.*--ray-address"):
        RayRunner(address=address)


def test_addresses_of_ray_are_taken() -> None:
    for address in ("auto", "10.0.0.7:6379", "[fd00::7]:6379", "ray://head:10001"):
        check_address(address)
