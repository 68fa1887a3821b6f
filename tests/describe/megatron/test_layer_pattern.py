from __future__ import annotations

import pytest

from zenith_tune.describe.megatron.model import expert_layers
from zenith_tune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "num_layers", "layers"),
    [
        (None, 3, "111"),
        ("1", 3, "111"),
        ("3", 7, "1001001"),
        ("[0,1,1]", 3, "011"),
        ("([0]*3+[1]*4)", 7, "0001111"),
        ("([1]*2+[0]*1)*2", 6, "110110"),
        (" [0] + [1]*2 ", 3, "011"),
    ],
)
def test_a_pattern_says_which_layers_have_experts(text: str | None, num_layers: int, layers: str) -> None:
    assert expert_layers(text, num_layers) == [layer == "1" for layer in layers]


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "x", "[x]*3", "__import__('os')", "[0]*3-[1]", "[1]*10**9", "[[0]*9999]*9999", "3+4", "("]
)
def test_whatever_else_python_could_evaluate_is_refused_and_not_run(text: str) -> None:
    with pytest.raises(UsageError, match="--moe-layer-freq"):
        expert_layers(text, 4)


def test_a_pattern_of_another_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        expert_layers("[0]*3+[1]*58", 60)
    message = str(caught.value)
    assert "--moe-layer-freq" in message and "60 layers" in message and "61" in message
