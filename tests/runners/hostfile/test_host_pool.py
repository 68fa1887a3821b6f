from __future__ import annotations

from zenith_tune.runners.hostfile.hosts import HostPool
from zenith_tune.study.resources import Resources

FOUR = {f"n{number}": 8 for number in range(1, 5)}


def test_no_host_is_given_twice_and_one_that_is_given_back_is_free() -> None:
    pool = HostPool(FOUR)
    first, second = pool.take(Resources(nodes=2)), pool.take(Resources(nodes=2))
    assert (first, second, pool.take(Resources())) == (["n1", "n2"], ["n3", "n4"], None)
    pool.give_back(["n3", "n4"])
    assert pool.take(Resources(nodes=2)) == ["n3", "n4"]


def test_a_trial_is_not_given_what_it_avoids_nor_a_host_with_too_few_slots() -> None:
    pool = HostPool({**FOUR, "n1": 4})
    assert pool.take(Resources(nodes=2, gpus_per_node=8, avoid=("n2",))) == ["n3", "n4"]
    assert pool.fitting(Resources(gpus_per_node=9)) == []


def test_a_host_that_a_trial_avoids_is_given_where_too_few_others_exist() -> None:
    pool = HostPool(FOUR)
    assert pool.take(Resources(nodes=3, avoid=("n1",))) == ["n2", "n3", "n4"]
    pool.give_back(["n2", "n3", "n4"])
    assert pool.take(Resources(nodes=4, avoid=("n1",))) == ["n1", "n2", "n3", "n4"]


def test_a_host_that_failed_is_given_only_where_too_few_others_exist() -> None:
    pool = HostPool(FOUR)
    taken = pool.take(Resources())
    assert taken == ["n1"]
    pool.give_back(taken, failed=taken)
    assert pool.take(Resources(nodes=3)) == ["n2", "n3", "n4"]
    assert pool.take(Resources()) is None, "it waits for a sound one"
    assert pool.take(Resources(nodes=1, avoid=("n2", "n3", "n4"))) == ["n1"]


def test_a_host_that_served_again_is_sound() -> None:
    pool = HostPool({"n1": 1, "n2": 1})
    pool.give_back(["n1"], failed=["n1"])
    assert pool.take(Resources(nodes=2)) == ["n1", "n2"]
    pool.give_back(["n1", "n2"])
    assert pool.take(Resources()) == ["n1"]
