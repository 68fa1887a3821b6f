from __future__ import annotations

import os
from pathlib import Path

import pytest

from zenith_tune.describe.megatron.version import MAX_BYTES, MegatronVersion, find_version, read_version

TEXT = """# Copyright
MAJOR = 0
MINOR = {minor}
PATCH = {patch}
PRE_RELEASE = {pre_release!r}

# Use the following formatting: (major, minor, patch, pre-release)
VERSION = (MAJOR, MINOR, PATCH, PRE_RELEASE)
__version__ = '.'.join(map(str, VERSION[:3])) + ''.join(VERSION[3:])
"""


def write_tree(folder: Path, *, minor: int, patch: int = 0, pre_release: str = "", text: str = TEXT) -> Path:
    """Write what of a Megatron tree is read; return its folder."""
    file = folder / "megatron" / "core" / "package_info.py"
    file.parent.mkdir(parents=True)
    file.write_text(text.format(minor=minor, patch=patch, pre_release=pre_release))
    return folder


def test_a_version_is_read_with_its_place(tmp_path: Path) -> None:
    version = read_version(write_tree(tmp_path, minor=16, patch=1))
    assert version == MegatronVersion(major=0, minor=16, patch=1, folder=tmp_path)
    assert (version.name, version.release) == ("0.16.1", (0, 16))


def test_what_comes_before_a_release_may_lack_what_is_new_in_it(tmp_path: Path) -> None:
    version = read_version(write_tree(tmp_path, minor=16, pre_release="rc3"))
    assert version is not None
    assert (version.name, version.release) == ("0.16.0rc3", (0, 15))


def test_the_first_folder_that_has_one_counts(tmp_path: Path) -> None:
    older, newer = write_tree(tmp_path / "a", minor=12), write_tree(tmp_path / "b", minor=15)
    found = find_version([tmp_path / "none", newer, older])
    assert found is not None and found.name == "0.15.0"
    assert find_version([tmp_path / "none"]) is None


def test_a_tree_that_cannot_be_read_is_not_passed_over_for_another(tmp_path: Path) -> None:
    other = write_tree(tmp_path / "other", minor=15)
    file = write_tree(tmp_path / "first", minor=16) / "megatron" / "core" / "package_info.py"
    for text in ("MAJOR = 0\nMINOR = 999999999999\nPATCH = 0\n", "MAJOR = 0\n\0", ""):
        file.write_text(text)
        assert find_version([tmp_path / "first", other]) is None
    file.unlink()
    os.mkfifo(file)
    assert find_version([tmp_path / "first", other]) is None
    for target in ("/dev/zero", "nowhere"):
        file.unlink()
        file.symlink_to(target)
        assert find_version([tmp_path / "first", other]) is None


def test_a_tree_without_its_version_is_found_as_python_would(tmp_path: Path) -> None:
    other = write_tree(tmp_path / "other", minor=15)
    core = tmp_path / "first" / "megatron" / "core"
    core.mkdir(parents=True)
    found = find_version([tmp_path / "first", other])
    assert found is not None and found.folder == other, "a folder without a file of a package is none"
    (core / "__init__.py").write_text("")
    assert find_version([tmp_path / "first", other]) is None


def test_annotated_numbers_are_read(tmp_path: Path) -> None:
    text = "MAJOR: int = 0\nMINOR: int = 7\nPATCH: 'int' = 2\nPRE_RELEASE: str\n"
    version = read_version(write_tree(tmp_path, minor=0, text=text))
    assert version is not None and version.name == "0.7.2"


def test_the_file_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    version = read_version(write_tree(tmp_path, minor=13, text=f"open({str(mark)!r}, 'w')\n{TEXT}"))
    assert version is not None and version.name == "0.13.0"
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    [
        "MAJOR = 0\nMINOR = 16\n",
        "MAJOR = 0\nMINOR = '16'\nPATCH = 0\n",
        "MAJOR = 0\nMINOR = True\nPATCH = 0\n",
        "MAJOR = 0\nMINOR = 99999999\nPATCH = 0\n",
        "MAJOR, MINOR, PATCH = 0, 16, 1\n",
        "MAJOR = = 0\n",
        "MAJOR = 0\n\0",
        "MAJOR = " + "(" * 5000,
        "MAJOR = 0\nMINOR = 16\nPATCH = 0\n" + "#" * MAX_BYTES,
    ],
)
def test_what_is_no_version_is_none(tmp_path: Path, text: str) -> None:
    file = write_tree(tmp_path, minor=0) / "megatron" / "core" / "package_info.py"
    file.write_text(text)
    assert read_version(tmp_path) is None


def test_a_label_that_is_no_word_is_left_out(tmp_path: Path) -> None:
    version = read_version(write_tree(tmp_path, minor=16, pre_release="\x1b[31m"))
    assert version is not None and version.name == "0.16.0"


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "megatron" / "core"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "package_info.py")
    assert read_version(tmp_path) is None


def test_a_tree_behind_a_link_is_read(tmp_path: Path) -> None:
    write_tree(tmp_path / "real", minor=14)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    version = read_version(tmp_path / "link")
    assert version is not None and version.folder == tmp_path / "link"


def test_a_release_candidate_counts_as_the_release_before() -> None:
    assert MegatronVersion(major=0, minor=16, patch=0, pre_release="rc0", folder=Path("x")).release == (0, 15)
