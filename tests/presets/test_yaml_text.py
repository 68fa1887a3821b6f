from __future__ import annotations

import yaml

from zenith_tune.presets.yaml_text import Settings, yaml_text


def test_what_is_written_reads_back_the_same() -> None:
    settings: Settings = {
        "a": 1,
        "b": {"c": True, "d": "no", "e": "plain/path-1", "f": "a: b # c", "g": 1.5, "h": "12", "i": ""},
        "j": "null",
    }
    assert yaml.safe_load(yaml_text(settings)) == settings
