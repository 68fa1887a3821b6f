from __future__ import annotations

from pathlib import Path

import pytest

from tests.presets.deepspeed.jobs import PLAIN, bound, write
from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import path_in_training_folder

TRAIN = "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (TRAIN, "ds.json"),
        (f"cd sub && {TRAIN}", "sub/ds.json"),
        (f"bash -c 'cd sub && {TRAIN}'", "sub/ds.json"),
        (f"cd a; bash -c 'cd \"b c\" && {TRAIN}'", "a/b c/ds.json"),
        (f"cd sub || exit 1\ncd -- deeper; {TRAIN} 2>&1 | tee log", "sub/deeper/ds.json"),
        (f"cd sub; cd /abs && {TRAIN}", "/abs/ds.json"),
        (f"(cd sub && {TRAIN})", "sub/ds.json"),
        (f"cd ~/sub && {TRAIN}", "/home/me/sub/ds.json"),
        (f"cd '~' && {TRAIN}", "~/ds.json"),
    ],
)
def test_the_folder_is_followed(text: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert str(path_in_training_folder(text, "ds.json")) == path


@pytest.mark.parametrize(
    "before", ["cd $WHERE;", "cd a || cd b;", "pushd sub;", "cd;", "cd -;", "(cd a; ls);", "cd a*;", "cd $(pwd)/a;"]
)
def test_where_only_the_shell_follows_an_absolute_path_is_asked_for(before: str) -> None:
    with pytest.raises(UsageError, match=r"ds\.json"):
        path_in_training_folder(f"{before} {TRAIN}", "ds.json")
    absolute = TRAIN.replace("ds.json", "/x/ds.json")
    assert str(path_in_training_folder(f"{before} {absolute}", "/x/ds.json")) == "/x/ds.json"


def test_a_home_is_put_in_where_the_shell_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    shown = {
        form: str(path_in_training_folder(f"deepspeed train.py --deepspeed_config{form}", "~/ds.json"))
        for form in (" ~/ds.json", " '~/ds.json'", "=~/ds.json")
    }
    assert list(shown.values()) == ["/home/me/ds.json", "~/ds.json", "~/ds.json"]
    with pytest.raises(UsageError, match="~no-such-user"):
        path_in_training_folder("deepspeed train.py --deepspeed ~no-such-user/ds.json", "~no-such-user/ds.json")


def test_the_file_of_that_folder_is_read_and_not_the_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    write(tmp_path, {**PLAIN, "train_batch_size": 4})
    write(tmp_path / "sub", PLAIN)
    preset = bound(f'bash -c "cd sub && {TRAIN}"')
    assert preset.get_search_space()["mbs"].grid(9) == [1, 2, 4, 8, 16]
