"""The version is stated once: everything else follows it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import zenith_tune
from tests.conftest import ROOT


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    releases = re.findall(r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0][0] == zenith_tune.__version__
    assert releases == sorted(releases, reverse=True)


def test_the_installed_distribution_has_the_version_of_the_package() -> None:
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]
    assert metadata.version("zenith-tune") == zenith_tune.__version__
