"""Paths as people write them."""

from __future__ import annotations

from zenith_tune.study.files import path_as_written


def test_a_home_folder_may_be_the_name_of_a_folder() -> None:
    assert str(path_as_written("~/out")) == "~/out"
    assert path_as_written("./~/out").is_absolute()
