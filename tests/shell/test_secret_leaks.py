from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.study_tools import Witness, tune

SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123"


def files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "command",
    [
        f"sh -c 'echo value: {{x}}' --hf-token {SECRET}",
        f"HF_TOKEN={SECRET} sh -c 'echo value: {{x}}'",
        f"sh -c 'echo value: {{x}}; echo using token '$HF_TOKEN --api-key={SECRET}",
        f"bash -c 'export WANDB_API_KEY={SECRET}; echo value: {{x}}; echo key $WANDB_API_KEY'",
        f"{sys.executable} -c 'import sys; print(\"value:\", 1, sys.argv)' {{x}} --password {SECRET}",
        f"sh -c 'echo failing {SECRET} >&2; exit {{x}}' x --token {SECRET}",
    ],
)
def test_a_token_in_the_command_is_in_no_file_that_is_written(tmp_path: Path, command: str) -> None:
    witness = Witness()
    tune(tmp_path, command, listener=witness).optimize()
    assert witness.trials
    assert files_with(SECRET, tmp_path / "out") == []
    assert files_with("***", tmp_path / "out")
    assert not any(SECRET in f"{trial.command} {trial.cause}" for trial in witness.trials)


def test_the_environment_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PLAIN_NAME", "a-value-to-look-for")
    tune(tmp_path).optimize()
    assert files_with("a-value-to-look-for", tmp_path / "out") == []


def test_a_dumped_environment_has_its_secrets_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("MY_TOKEN", "AWS_SECRET_ACCESS", "SSH_KEY_X", "DB_PASSWORD", "my_token")
    for name in names:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("SOME_PLAIN_NAME", "plain")
    tune(tmp_path, dump_env=True).optimize()
    dumped = json.loads((tmp_path / "out/s/environment.json").read_text())
    assert dumped["SOME_PLAIN_NAME"] == "plain"
    assert {dumped[name] for name in names} == {"***"}
    assert files_with(SECRET, tmp_path / "out") == []


def test_a_masked_study_is_resumed_with_the_real_command(tmp_path: Path) -> None:
    command = f"HF_TOKEN={SECRET} sh -c 'echo value: {{x}}'"
    tune(tmp_path, command).optimize(n_trials=1)
    witness = Witness()
    tune(tmp_path, command, resume=True, listener=witness).optimize()
    assert len(witness.recalled) == 1 and len(witness.trials) == 2
