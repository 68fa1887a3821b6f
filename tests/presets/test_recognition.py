"""Which preset a command is for, where a package of its own brings it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

import pytest

from tests.mentions import mentions
from zenith_tune import registry
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry, recognised_preset


@pytest.mark.parametrize(
    "ask",
    [
        lambda: PresetRegistry.get("mimo"),
        lambda: recognised_preset("torchrun --nproc-per-node 4 examples/mimo_train.py --llm-tp 2"),
        lambda: recognised_preset("torchrun --nproc-per-node 4 examples/mimo/pretrain_mimo.py --llm-tp 2"),
    ],
)
def test_a_preset_whose_package_is_not_installed_says_in_one_line_how_to_install_it(
    ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_installed", lambda *_: metadata.EntryPoints())
    monkeypatch.setattr(PresetRegistry, "_classes", {})
    with pytest.raises(UsageError) as refused:
        ask()
    assert mentions(refused.value, "mimo", "zenith-mimo", "'zenith-tune[mimo]'") and "\n" not in str(refused.value)
