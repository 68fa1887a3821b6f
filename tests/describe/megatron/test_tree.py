"""Which Megatron tree a command uses, with small trees that hold nothing but their version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.describe.megatron.test_version import write_tree
from zenith_tune.describe.megatron.version import megatron_version
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.shell.scripts.runs import ProgramRun


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def version_of(command: str, environment: dict[str, str] | None = None) -> str | None:
    run = find_pretrain_run(command, environment or {})
    assert run is not None
    found = megatron_version(run, environment or {})
    return None if found is None else found.name


def test_the_tree_of_the_script_comes_first(here: Path) -> None:
    write_tree(here / "Megatron-LM", minor=12, patch=1)
    write_tree(here / "other", minor=15)
    assert version_of("torchrun Megatron-LM/pretrain_gpt.py", {"PYTHONPATH": f"{here}/other"}) == "0.12.1"
    assert version_of(f"torchrun {here}/Megatron-LM/pretrain_gpt.py") == "0.12.1"
    assert version_of("torchrun ./pretrain_gpt.py") is None


def test_a_link_to_the_script_leads_to_its_tree(here: Path) -> None:
    script = write_tree(here / "real", minor=13) / "pretrain_gpt.py"
    script.write_text("")
    (here / "pretrain_gpt.py").symlink_to(script)
    assert version_of("torchrun pretrain_gpt.py") == "0.13.0"


@pytest.mark.parametrize(
    "command",
    [
        "cd Megatron-LM && torchrun pretrain_gpt.py",
        "(cd Megatron-LM; torchrun pretrain_gpt.py)",
        "DIR=Megatron-LM; torchrun $DIR/pretrain_gpt.py",
        "bash -c 'cd Megatron-LM && python pretrain_gpt.py'",
        "bash train.sh",
        "PYTHONPATH=Megatron-LM torchrun x/pretrain_gpt.py",
        "export PYTHONPATH=$PWD_IS_NOT_KNOWN/x:Megatron-LM; torchrun x/pretrain_gpt.py",
        "env PYTHONPATH=Megatron-LM python x/pretrain_gpt.py",
    ],
)
def test_folders_are_followed_as_the_shell_would(here: Path, command: str) -> None:
    write_tree(here / "Megatron-LM", minor=14)
    (here / "train.sh").write_text('cd Megatron-LM\ntorchrun pretrain_gpt.py "$@"\n')
    assert version_of(command) == "0.14.0"


@pytest.mark.parametrize("command", ["cd $WORK && torchrun pretrain_gpt.py", "torchrun $MEGATRON/pretrain_gpt.py"])
def test_a_folder_that_only_a_shell_knows_is_not_guessed_at(here: Path, command: str) -> None:
    write_tree(here, minor=14)
    write_tree(here / "$MEGATRON", minor=14)
    assert version_of(command) is None


def test_a_name_that_no_file_can_have_is_none() -> None:
    run = ProgramRun(launcher=("torchrun",), program="x\0/pretrain_gpt.py", arguments=(), variables={}, folder=Path())
    assert megatron_version(run, {"PYTHONPATH": "y\0"}) is None


def test_the_commands_own_path_wins_over_the_environments(here: Path) -> None:
    write_tree(here / "a", minor=11)
    write_tree(here / "b", minor=17)
    environment = {"PYTHONPATH": f"{here}/b"}
    assert version_of("torchrun x/pretrain_gpt.py", environment) == "0.17.0"
    assert version_of(f"PYTHONPATH={here}/a torchrun x/pretrain_gpt.py", environment) == "0.11.0"


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])
def test_packages_of_the_commands_own_python_are_looked_at_last(here: Path, packages: str) -> None:
    write_tree(here / "venv" / "lib" / "python3.12" / packages, minor=16)
    program = here / "venv" / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    assert version_of("torchrun pretrain_gpt.py", {"PATH": str(program.parent)}) == "0.16.0"
    assert version_of("venv/bin/python3 -m torch.distributed.run pretrain_gpt.py") == "0.16.0"
    assert version_of("torchrun pretrain_gpt.py", {"PATH": str(here)}) is None
    write_tree(here / "tree", minor=13)
    assert version_of("venv/bin/python3 tree/pretrain_gpt.py") == "0.13.0"
