from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.server.url import connect_args, driver_url, refuse_misspelt, shown
from zenith_tune.tuning.options import TuneOptions
from zenith_tune.tuning.place import StudyPlace


def only(monkeypatch: pytest.MonkeyPatch, *drivers: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in drivers else None)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
def test_the_driver_that_is_installed_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    only(monkeypatch, "psycopg", "psycopg2")
    assert driver_url(f"{scheme}://h/s") == "postgresql+psycopg://h/s"
    only(monkeypatch, "psycopg2")
    assert driver_url(f"{scheme}://h/s") == "postgresql+psycopg2://h/s"


def test_a_driver_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "psycopg", "psycopg2")
    assert driver_url("postgresql+psycopg2://h/s") == "postgresql+psycopg2://h/s"


def test_a_missing_driver_names_the_extra_and_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch)
    with pytest.raises(StudyError, match=r"pip install 'zenith-tune\[postgres\]'") as refused:
        StudyPlace.find(TuneOptions(output_dir=tmp_path, db="postgresql://me:pw@h/s"), stem="s")
    assert "postgresql://me:***@h/s" in str(refused.value)


def test_another_driver_or_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"psycopg or psycopg2, .*'asyncpg'"):
        driver_url("postgresql+asyncpg://h/s")
    with pytest.raises(UsageError, match=r"SQLite .*postgresql:// .*mysql://me:\*\*\*@h/s"):
        StudyPlace.find(TuneOptions(output_dir=tmp_path, db="mysql://me:pw@h/s"), stem="s")


def test_the_study_on_a_server_has_its_files_in_the_default_folder() -> None:
    place = StudyPlace.find(TuneOptions(output_dir=None, study_name="s", db="postgresql://h/s", resume=True), stem="s")
    assert place.folder.path == Path("zenithtune-out/s").absolute()
    assert place.database_url == "postgresql://h/s"


@pytest.mark.parametrize(
    "url", ["postgresql://me:a@h/s", "postgresql:///s?user=me&password=a", "postgres://me:a:b@h/s"]
)
def test_a_password_is_never_shown_however_short(url: str) -> None:
    assert ":a" not in shown(url) and "=a" not in shown(url) and "***" in shown(url)


def test_what_the_address_says_of_connections_stands() -> None:
    assert "connect_timeout" in connect_args("postgresql://h/s")
    assert "connect_timeout" not in connect_args("postgresql://h/s?connect_timeout=2")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u2:sl/ash#q@127.0.0.1:35499/postgres",
        "postgresql://u2:first@second@127.0.0.1/postgres",
        "postgresql+psycopg://u2:a?b=c@127.0.0.1/postgres",
    ],
)
def test_no_part_of_an_odd_password_is_shown(url: str) -> None:
    assert shown(url).startswith(url.partition("u2")[0] + "u2:***@127.0.0.1")


def test_an_address_without_its_slashes_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="has no ://") as caught:
        refuse_misspelt("postgresql:/me:secret@host/studies")
    assert "secret" not in str(caught.value)
