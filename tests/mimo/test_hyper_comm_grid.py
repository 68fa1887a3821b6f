"""The grid of ranks, against the enumerations that Megatron-LM's own gave (main of 2026-08-22)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram
from zenith_mimo.grid import HyperCommGrid
from zenith_tune.errors import UsageError

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("megatron_rank_enums.json").read_text())


def test_groups_are_those_of_megatron_for_random_shapes_offsets_and_dimensions() -> None:
    assert len(RECORDED) == 60
    for record in RECORDED:
        record = dict(record)
        dims, ranks = record.pop("dims"), record.pop("ranks")
        assert HyperCommGrid(**record).get_rank_enum(dims) == ranks, (record, dims)


def test_a_group_does_not_depend_on_the_order_in_which_its_dimensions_are_named() -> None:
    grid = HyperCommGrid([2, 3, 2], ["tp", "pp", "dp"], world_size=12)
    assert grid.get_rank_enum(["tp", "dp"]) == grid.get_rank_enum(["dp", "tp"])


def test_a_view_is_another_box_of_the_same_ranks() -> None:
    grid = HyperCommGrid([2, 2, 2], ["tp", "dp", "pp"], rank_offset=8, world_size=16)
    grid.register_view("expert", [1, 4, 2], ["expt_tp", "ep", "pp"], shared_dims=["pp"])
    assert grid.get_rank_enum("ep", view="expert") == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert grid.get_rank_enum("pp", view="expert") == grid.get_rank_enum("pp")
    with pytest.raises(KeyError, match="other"):
        grid.get_rank_enum("ep", view="other")
    with pytest.raises(UsageError, match="ep"):
        grid.get_rank_enum("ep")


@pytest.mark.parametrize(
    ("shape", "names", "shared", "named"),
    [
        ([2, 2], ["ep", "pp"], [], (4, 8)),
        ([2, 2, 2], ["ep", "pp"], [], (3, 2)),
        ([8, 1], ["ep", "ep"], [], ("ep",)),
        ([8, 0], ["ep", "pp"], [], (0,)),
        ([4, 2], ["ep", "pp"], ["pp", "pp"], ("pp",)),
        ([4, 2], ["ep", "edp"], ["edp"], ("edp",)),
        ([4, 2], ["ep", "edp"], ["pp"], ("pp",)),
        ([2, 4], ["pp", "ep"], ["pp"], ("pp", "membership")),
    ],
)
def test_a_view_that_does_not_fit_the_grid_is_refused(
    shape: list[int], names: list[str], shared: list[str], named: tuple[object, ...]
) -> None:
    grid = HyperCommGrid([2, 2, 2], ["tp", "dp", "pp"], world_size=8)
    with pytest.raises(UsageError) as caught:
        grid.register_view("expert", shape, names, shared)
    assert mentions(caught.value, *named)
    grid.register_view("expert", [4, 2], ["ep", "pp"])
    with pytest.raises(UsageError, match="expert"):
        grid.register_view("expert", [4, 2], ["ep", "pp"])


def test_coordinates_and_ranks_are_inverse() -> None:
    grid = HyperCommGrid([2, 3, 2], ["tp", "pp", "dp"], rank_offset=5, world_size=17)
    assert [grid.rank_at(**grid.coordinates(rank)) for rank in range(5, 17)] == list(range(5, 17))
    assert grid.coordinates(8) == {"tp": 1, "pp": 1, "dp": 0}
    with pytest.raises(UsageError, match=r"rank 4\b.*\b5\b.*\b16\b"):
        grid.coordinates(4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([2, 2], ["tp"]), (2, "tp")),
        (([2, 2], ["tp", "tp"]), ("dim_names", "tp")),
        (([2, 0], ["tp", "dp"]), ("positive", 0)),
        (([2], ["tp"], -1), ("rank_offset", 0, -1)),
        (([2, 4], ["tp", "dp"], 1), ("2 * 4 = 8", "rank 1", 8)),
    ],
)
def test_a_grid_that_cannot_be_is_refused(arguments: tuple[Any, ...], named: tuple[object, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        HyperCommGrid(*arguments, world_size=8)
    assert mentions(caught.value, *named)


def test_misuse_raises_what_megatrons_grid_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    grid = HyperCommGrid([2, 2], ["tp", "dp"])
    misuses: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: HyperCommGrid([2], ["tp", "dp"])),
        (ValueError, lambda: HyperCommGrid([2], ["tp"], -1)),
        (RuntimeError, lambda: HyperCommGrid([9], ["tp"])),
        (RuntimeError, lambda: HyperCommGrid([4, 2], ["tp", "dp"], 1)),
        (ValueError, lambda: grid.get_rank_enum("pp")),
        (ValueError, lambda: grid.get_rank_enum(["tp", "tp"])),
        (KeyError, lambda: grid.get_pg("dp")),
    ]
    for kind, misuse in misuses:
        with pytest.raises(kind):
            misuse()


# What upstream's own tests of the class match on, and so may those of its users.
@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda _: HyperCommGrid([2, 2], ["tp"]), r"len\(shape\).*!= len\(dim_names\)"),
        (lambda _: HyperCommGrid([4, 4], ["tp", "dp"]), "Grid shape.*is over sized"),
        (lambda grid: grid.get_pg("tp"), "Process group for.*hasn't been created"),
        (lambda grid: grid.get_pg("ep", view="expert"), "for view 'expert' hasn't been created"),
        (lambda grid: grid.get_rank_enum("tp", view="nope"), "View 'nope' is not registered"),
        (lambda grid: grid.get_rank_enum("ep"), "'ep' is not in view 'base'"),
        (lambda grid: grid.register_view("expert", [8], ["ep"]), "is already registered"),
        (lambda grid: grid.register_view("more", [2, 4], ["ep", "ep"]), "duplicate dim_names"),
        (lambda grid: grid.register_view("more", [2, 2], ["ep", "pp"]), "but the grid size is 8"),
        (lambda grid: grid.register_view("more", [8, 0], ["ep", "pp"]), "shape must be positive ints"),
        (lambda grid: grid.register_view("more", [4, 2], ["ep", "pp"], ["pp", "pp"]), "duplicate shared_dims"),
        (lambda grid: grid.register_view("more", [8], ["ep"], ["pp"]), "Shared dim 'pp' .* is not in the view's"),
        (lambda grid: grid.register_view("more", [8], ["ep"], ["ep"]), "Shared dim 'ep' .* is not in the base view"),
        (lambda grid: grid.register_view("more", [2, 4], ["pp", "ep"], ["pp"]), "Shared dim 'pp' has different mem"),
    ],
)
def test_messages_have_the_words_of_megatrons_grid(
    misuse: Callable[[HyperCommGrid], object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    grid = HyperCommGrid([2, 2, 2], ["tp", "dp", "pp"])
    grid.register_view("expert", [4, 2], ["ep", "expt_dp"])
    with pytest.raises((ValueError, KeyError, RuntimeError), match=words):
        misuse(grid)


def test_the_world_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert HyperCommGrid([4], ["dp"]).size == 4
    with pytest.raises(UsageError, match=r"\b5\b.*\b4\b"):
        HyperCommGrid([5], ["dp"])


def test_unknown_and_repeated_dimensions_are_refused() -> None:
    grid = HyperCommGrid([2, 2], ["tp", "dp"], world_size=4)
    with pytest.raises(UsageError, match="'pp'"):
        grid.get_rank_enum("pp")
    with pytest.raises(UsageError, match="once"):
        grid.get_rank_enum(["tp", "tp"])


@pytest.mark.slow
def test_groups_are_made_once_by_all_ranks_and_are_gone_when_destroyed(run_program: RunProgram) -> None:
    ranks = run_program("grid")
    assert [rank["sums"]["tp"] for rank in ranks] == [11, 11, 1100, 1100]
    assert [rank["sums"]["ep"] for rank in ranks] == [11, 11, 1100, 1100]
    assert [rank["sums"]["dp"] for rank in ranks] == [101, 1010, 101, 1010]
    assert [rank["sums"].get("tail") for rank in ranks] == [None, None, 1100, 1100]
    assert [rank["is_in_tail"] for rank in ranks] == [False, False, True, True]
    for rank in ranks:
        assert rank["sums"]["dp-tp"] == 1111 and rank["is_kept"] and rank["again"]
        assert mentions(rank["early"], "KeyError", "dp", "create_pg")
        assert mentions(rank["twice"], "KeyError", "tp", "dp") and "create_pg" not in rank["twice"]
        assert rank["is_shared"]
        assert mentions(rank["after"], "KeyError", "tp", "create_pg")
