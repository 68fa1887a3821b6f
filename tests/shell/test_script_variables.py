from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune.shell.variables import fixed_in_script


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.sh", "#!/bin/bash\nexport GPUS=0,1  # mine\npython t.py\n", "export GPUS=0,1"),
        ("t.sh", "GPUS=0 python t.py\necho $GPUS\n", "GPUS=0 python t.py"),
        ("t.sh", "A=1; GPUS=0\n", "A=1; GPUS=0"),
        ("t.sh", "export GPUS=${GPUS:-0,1}\n", None),
        ("t.sh", 'if [ -z "$GPUS" ]; then\n  export GPUS=0,1\nfi\n', None),
        ("t.sh", '[ -n "$GPUS" ] || export GPUS=0\n', None),
        ("t.sh", "# export GPUS=0\nNUM_GPUS=8\n", None),
        ("t.py", 'import os\nos.environ["GPUS"] = "0"\n', 'os.environ["GPUS"] = "0"'),
        ("t.py", "if args.gpu:\n    os.environ['GPUS'] = '0'\n", None),
        ("t.py", 'os.environ.setdefault("GPUS", "0")\n', None),
        ("t.py", 'os.environ["GPUS"] = os.environ.get("GPUS", "0")\n', None),
        ("t.py", 'if os.environ["GPUS"] == "0": pass\n', None),
    ],
)
def test_a_script_that_sets_a_variable_whatever_it_was_is_seen(
    name: str, text: str, line: str | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    command = f"bash {path} --lr 1" if name.endswith(".sh") else f"torchrun {path} --lr 1"
    assert fixed_in_script(command, "GPUS") == (None if line is None else (str(path), line))


@pytest.mark.parametrize(
    "command", ["bash missing.sh", "bash $SCRIPT", "cd there && bash t.sh", "a & b", "python -m t"]
)
def test_what_cannot_be_read_tells_nothing(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.sh").write_text("GPUS=0\n")
    assert fixed_in_script(command, "GPUS") is None
