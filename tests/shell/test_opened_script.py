"""A script that was opened runs what it ran before, and its training command can be read and changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.opened import changed_script, opened_script, with_script

TRAINER = r"""#!/bin/bash
echo "in $PWD, A=$A, for $SCRIPT"
for word in "$@"; do echo "[$word]"; done
"""
SCRIPTS = {
    "plain": "python train.py --lr 1 --flag\n",
    "lists": r"""
#!/bin/bash
set -euo pipefail
GPUS=${GPUS:-8}
MODEL=(
    --layers 16   # as in the paper
    --name 'a b'
)
if [ ! -d logs ]; then mkdir logs; fi
torchrun --nproc_per_node $GPUS --master_port $((6000 + 1)) train.py ${MODEL[@]/#/} \
    "${MODEL[@]}" --lr 1 --save "$PWD/ckpt-$(echo 5)" 2>&1 | tee logs/out.log
""",
    "text": 'ARGS="--lr 1 --flag"\nARGS="$ARGS --more 2"\nexec python train.py $ARGS $NOT_SET\n',
    "own place": 'cd "$(dirname "${BASH_SOURCE[0]}")"\nSCRIPT=$0 A=1 python train.py --lr 1\n',
    "arguments": '[ $# -gt 3 ] && shift\npython train.py --lr "$1" "$2" --count $# "$@"\n',
    "function": 'run() {\n  local lr=$1\n  python train.py --lr $lr "${@:2}"\n}\nrun 1 --flag\n',
    "condition": 'if [ "${BIG:-0}" = 1 ]; then\n  EXTRA="--lr 2"\nelse\n  EXTRA="--lr 1"\nfi\npython train.py $EXTRA\n',
    "quotes": """python train.py --lr 1 --json '{"a": "it'"'"'s"}' --home "~ $HOME" --x=\\$y\n""",
    "beside": 'python -c "1"\npython -m pip list >/dev/null\necho python\npython train.py --lr 1 &>log\ncat log\n',
    "appended": 'OPTS=(--lr 1)\n[ -n "${W:-}" ] && OPTS+=(--wandb)\npython train.py "${OPTS[@]}"\n',
    "unknown": 'OPTS=(--lr 1)\n[ -f some-file ] && OPTS+=(--wandb)\npython train.py "${OPTS[@]}"\n',
    "here-document": "cat > conf.yaml <<EOF\nlr: 1\nEOF\npython train.py --lr 1 --config conf.yaml\ncat conf.yaml\n",
}


def run(command: str, folder: Path) -> str:
    env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    for name in ("python", "torchrun"):
        (tmp_path / "bin" / name).write_text(TRAINER)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


HIDDEN = ("unknown",)
"""Those with options that only the shell knows: they are left to it."""
PLAIN = ("plain", "text", "arguments", "condition", "quotes", "here-document")
"""Those that any shell runs."""
CASES = [
    *((name, start) for name in SCRIPTS for start in ("bash jobs/train.sh", "A=2 bash -e jobs/train.sh")),
    *((name, "./jobs/train.sh") for name in ("lists", "own place")),
    *((name, "sh jobs/train.sh") for name in PLAIN),
]


def write(folder: Path, text: str) -> None:
    path = folder / "jobs" / "train.sh"
    path.parent.mkdir()
    path.write_text(text.lstrip("\n"))
    path.chmod(0o755)


@pytest.mark.parametrize(("name", "start"), CASES)
def test_an_opened_script_runs_the_same_and_shows_its_options(folder: Path, name: str, start: str) -> None:
    write(folder, SCRIPTS[name])
    command = f"{start} 1 2 'three 4'"
    opened, before = opened_script(command), run(command, folder)
    assert "\n[--lr]\n[1]\n" in before
    assert run(opened, folder) == before
    line = ParsedCommand.of(opened)
    if name in HIDDEN:
        assert run(line.set({"--lr": 3}).text, folder).replace("[--lr]\n[3]\n", "") == before
    else:
        assert line.has("--lr")
        assert run(line.set({"--lr": 3}).text, folder) == before.replace("[--lr]\n[1]", "[--lr]\n[3]")
        assert run(line.remove("--lr").text, folder) == before.replace("[--lr]\n[1]\n", "")


def test_the_change_of_a_script_keeps_the_words_that_stay(folder: Path) -> None:
    write(folder, SCRIPTS["lists"])
    own = opened_script("bash jobs/train.sh")
    changed = ParsedCommand.of(own).set({"--lr": 2}).add_flag("--fused")
    assert changed_script(own, own) is None
    change = changed_script(own, changed.text)
    assert change is not None and change.path == "jobs/train.sh"
    assert [line for line in change.diff.splitlines() if line[0] in "+-"][2:] == [
        '-    "${MODEL[@]}" --lr 1 --save "$PWD/ckpt-$(echo 5)" 2>&1 | tee logs/out.log',
        '+    "${MODEL[@]}" --lr 2 --save "$PWD/ckpt-$(echo 5)" --fused 2>&1 | tee logs/out.log',
    ]
    wanted = run(changed.text, folder)
    (folder / "best.diff").write_text(change.diff)
    subprocess.run(["patch", "-s", "jobs/train.sh", "best.diff"], cwd=folder, check=True)
    assert run("bash jobs/train.sh", folder) == wanted


@pytest.mark.parametrize(("name", "start"), CASES)
def test_the_changed_script_to_copy_is_the_users_text_and_runs_as_its_trial_did(
    folder: Path, name: str, start: str
) -> None:
    write(folder, SCRIPTS[name])
    own = opened_script(f"{start} 1 2 'three 4'")
    changed = ParsedCommand.of(own).set({"--lr": 3}).text
    script = changed_script(own, changed)
    if script is None:
        return
    readable = with_script(changed, script)
    assert "eval " not in readable and run(readable, folder) == run(changed, folder)


def test_a_list_of_which_one_option_changes_is_written_out(folder: Path) -> None:
    write(folder, SCRIPTS["text"])
    own = opened_script("bash jobs/train.sh")
    change = changed_script(own, ParsedCommand.of(own).remove("--lr").text)
    assert change is not None
    assert change.after.splitlines()[-1] == "exec python train.py --flag --more 2 $NOT_SET"


def test_a_script_that_another_script_starts_is_opened_too(folder: Path) -> None:
    write(folder, SCRIPTS["lists"])
    (folder / "launch.sh").write_text("#!/bin/bash\nexport A=7\nbash jobs/train.sh x\n")
    opened = opened_script("bash launch.sh")
    assert ParsedCommand.of(opened).get("--lr") == "1"
    assert run(opened, folder) == run("bash launch.sh", folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo no training\n", "starts none"),
        ("python a.py\npython b.py\n", "starts python, python"),
        ("python train.py > out.log --lr 1\n", "redirection"),
        ("#" * 70_000, "60,000 characters"),
    ],
)
def test_a_script_that_is_not_clear_is_left_alone(folder: Path, text: str, why: str) -> None:
    write(folder, text)
    with pytest.raises(CommandError, match=why):
        opened_script("bash jobs/train.sh")
