"""The examples of zero lever declaration."""

from __future__ import annotations

from zenith_tune.presets.shared.zero_lever_declaration import logged_release


def test_the_release_of_deepspeed_is_in_its_log() -> None:
    assert logged_release("[INFO] DeepSpeed info: version=0.19.8, git-hash=unknown") == (0, 19, 8)
