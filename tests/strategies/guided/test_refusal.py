from __future__ import annotations

import pytest

from tests.strategies.guided.worlds import points, prior
from zenith_tune.layouts.layout import named_axes
from zenith_tune.strategies.guided.observer import refused_alike, rule_of

POINTS = points()


@pytest.mark.parametrize(
    ("message", "axes"),
    [
        ("number of query groups (4) must be divisible by tensor_model_parallel_size (8)", ("tp",)),
        ("num_layers should be divisible by pipeline_model_parallel_size", ("pp",)),
        ("global batch size (16) is not divisible by micro batch size (4) times data parallel size (8)", ("mbs", "dp")),
        ("context parallelism needs --attention-backend", ()),
        ("expert-tensor-parallel-size must be 1", ("etp",)),
        ("something else went wrong", ()),
    ],
)
def test_a_message_names_axes(message: str, axes: tuple[str, ...]) -> None:
    found = named_axes(message)
    assert set(axes) <= set(found) and (axes or set(found) <= {"cp"})


def test_every_layout_with_the_refused_value_is_left_out_and_no_other() -> None:
    index = next(i for i, point in enumerate(POINTS) if point["tp"] == 8)
    alike = refused_alike(prior().layouts, index, "8 query groups must be divisible by tensor-model-parallel-size 8")
    assert [bool(flag) for flag in alike] == [point["tp"] == 8 for point in POINTS]


def test_two_named_axes_must_both_agree() -> None:
    index = next(i for i, point in enumerate(POINTS) if point["tp"] == 2 and point["pp"] == 2)
    message = "tensor parallel and pipeline parallel sizes do not go together"
    alike = refused_alike(prior().layouts, index, message)
    assert [bool(flag) for flag in alike] == [point["tp"] == 2 and point["pp"] == 2 for point in POINTS]


def test_a_message_that_names_nothing_refuses_that_layout_alone() -> None:
    alike = refused_alike(prior().layouts, 5, "assertion failed")
    assert alike.sum() == 1 and alike[5]
    rule = rule_of(prior().layouts, 5, "assertion failed")
    assert rule.endswith("assertion failed") and "=" not in rule


def test_an_option_that_the_program_does_not_know_says_nothing_of_other_layouts() -> None:
    message = "pretrain_gpt.py: error: unrecognized arguments: --tensor-model-parallel-size 2"
    assert named_axes(message)
    alike = refused_alike(prior().layouts, 5, message)
    assert alike.sum() == 1 and alike[5]
