from __future__ import annotations

from pathlib import Path

import pytest

from tests.presets.accelerate.jobs import MEGATRON, bound, command, point, write
from tests.presets.accelerate.jobs import SECTIONS as KINDS

KEY = "megatron_lm_context_parallel_size"
SMALL = MEGATRON.replace("tp_degree: 4", "tp_degree: 2")


def test_the_users_own_point_has_the_context_size_that_accelerate_takes_and_trials_have_one(tmp_path: Path) -> None:
    text = command(write(tmp_path, "MEGATRON_LM", SMALL))
    preset = bound(text)
    own = preset.own_point(text)
    assert own is not None and own["cp"] == 2 and point(preset)["cp"] == 1
    assert preset.layout(own).dp == 2 and preset.layout(point(preset)).dp == 4
    (unasked,) = preset.implicit_defaults(text)
    assert (unasked.name, unasked.size, unasked.meant) == ("cp", 2, 1) and unasked.hint == f"set {KEY}: 1"


@pytest.mark.parametrize("size", [1, 2])
def test_a_context_size_that_is_said_is_asked_for(tmp_path: Path, size: int) -> None:
    text = command(write(tmp_path, "MEGATRON_LM", f"{SMALL}  {KEY}: {size}\n"))
    preset = bound(text)
    own = preset.own_point(text)
    assert preset.implicit_defaults(text) == [] and own is not None and own["cp"] == size


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MEGATRON_LM"])
def test_other_backends_take_nothing_that_is_not_said(tmp_path: Path, kind: str) -> None:
    text = command(write(tmp_path, kind), more="--batch_size 2")
    assert bound(text, mbs_option="--batch_size").implicit_defaults(text) == []
