from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.mentions import mentions
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.registry import construct, parse_pairs, typed


class Gadget:
    def __init__(
        self, *, size: int, ratio: float = 0.5, name: str | None = None, loud: bool = False, level: int | None = None
    ) -> None:
        self.all = (size, ratio, name, loud, level)


class Tolerant:
    def __init__(self, *, size: int, **others: object) -> None:
        self.size = size


def test_types_come_from_the_signature() -> None:
    args = {"size": "3", "ratio": "1e-2", "name": "7", "loud": "true", "level": "2"}
    assert construct(Gadget, args, "gadget").all == (3, 0.01, "7", True, 2)


def test_equal_arguments_are_equal_once_typed() -> None:
    assert typed(Gadget, {"size": "03"}, "gadget") == typed(Gadget, {"size": "3"}, "gadget") == {"size": 3}


def test_typed_values_pass_as_they_are() -> None:
    assert construct(Gadget, {"size": 3}, "gadget").all == (3, 0.5, None, False, None)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({}, ("gadget", "size: int", "ratio: float", "name: str", "loud: bool", "level: int")),
        ({"size": "3", "sise": "4"}, ("'sise'", "size: int")),
        ({"size": "3.5"}, ("size", "int", "'3.5'")),
        ({"size": "3", "loud": "perhaps"}, ("loud", "bool", "'perhaps'")),
        ({"size": "3", "ratio": "x"}, ("ratio", "float", "'x'")),
    ],
)
def test_a_mistake_is_named_with_the_valid_keys(args: dict[str, Any], named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        construct(Gadget, args, "gadget")
    assert mentions(caught.value, *named)


def test_defaults_fill_in_where_the_constructor_knows_them() -> None:
    assert construct(Gadget, {"ratio": "2"}, "gadget", defaults={"size": "9", "unknown": "1"}).all[:2] == (9, 2.0)


def test_a_constructor_that_takes_anything_is_not_strict() -> None:
    assert construct(Tolerant, {"size": "1", "other": "2"}, "tolerant").size == 1


def test_a_comma_in_a_value_is_escaped() -> None:
    assert parse_pairs(r"model=a\,b,n=1", "--args") == {"model": "a,b", "n": "1"}


@pytest.mark.parametrize("text", ["", "a", "a=", "=1", "a=1,,b=2", "a=1,b", "a=1,a=2"])
def test_pairs_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_pairs(text, "--args")


@pytest.mark.parametrize("name", [name for name in PresetRegistry.names() if name != "space"])
def test_a_number_that_is_text_is_refused_in_one_line_by_every_preset(name: str) -> None:
    cls = PresetRegistry.get(name)
    hints = inspect.signature(cls).parameters
    with pytest.raises(UsageError) as caught:
        cls(**{"gbs": 16, "n_gpus": "8"} if "gbs" in hints else {"n_gpus": "8"})
    assert mentions(caught.value, "n_gpus", "'8'") and "\n" not in str(caught.value)
