from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune.runners.launch import left_files
from zenith_tune.runners.launch.left_files import state_of, without_open, written_files


def state_after(folder: Path, *names: str, besides: tuple[Path, ...] = ()) -> dict[str, tuple[int, int]]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((folder / name).read_text() + "x" if (folder / name).exists() else "x")
    found = state_of(folder, besides)
    assert found is not None
    return dict(found)


def test_what_is_new_and_what_is_written_over_is_named_and_what_stays_is_not(tmp_path: Path) -> None:
    before = state_after(tmp_path, "data.bin", "model.pt", "runs/old/1")
    after = state_after(tmp_path, "model.pt", "runs/new/1", "runs/new/2", "out/last.pt")
    assert written_files(before, after) == "model.pt (overwritten), out/last.pt and runs/ (2 files)"
    assert written_files(after, after) == ""


def test_many_files_are_counted() -> None:
    after = {f"{number}.pt": (1, 1) for number in range(9)}
    assert written_files({}, after) == "0.pt, 1.pt, 2.pt and 6 more"


def test_caches_hidden_files_links_and_the_study_itself_are_left_out(tmp_path: Path) -> None:
    names = ("a.pt", ".git/index", "src/__pycache__/a.pyc", "zenithtune-out/s/study.json")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert set(state_after(tmp_path, *names, besides=(tmp_path / "zenithtune-out",))) == {"a.pt"}


def test_a_folder_of_too_many_files_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_files, "MOST_FILES", 2)
    state_after(tmp_path, "1", "2")
    (tmp_path / "3").write_text("")
    assert state_of(tmp_path) is None


def test_a_file_that_another_process_holds_open_is_not_the_runs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with (tmp_path / "kept.log").open("w") as kept:
        kept.write("x")
        assert without_open(state_of(tmp_path) or {}, tmp_path).keys() == {"a"}
    assert without_open(state_of(tmp_path) or {}, tmp_path).keys() == {"a", "kept.log"}
