from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.presets.accelerate.command import recognises
from zenith_tune.presets.shared import trial_hook
from zenith_tune.presets.shared.accelerate_launch import Launch
from zenith_tune.shell.placeholders import fill_placeholders

FILE = "--config_file {trial_folder}/accelerate_config.yaml"
HOOK = "env PYTHONPATH={trial_folder}/hook${PYTHONPATH:+:$PYTHONPATH}"


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("accelerate launch train.py", f"accelerate launch {FILE} train.py"),
        ("accelerate launch --config_file a.yaml train.py --x 1", f"accelerate launch {FILE} train.py --x 1"),
        ("accelerate launch --config-file='a b.yaml' -m pkg.train", f"accelerate launch {FILE} -m pkg.train"),
        ("cd there && accelerate-launch --zero_stage=2 t.py > log", f"cd there && accelerate-launch {FILE} t.py > log"),
        ("srun -n 2 accelerate launch --num_processes 8 t.py", f"srun -n 2 accelerate launch {FILE} t.py"),
        ("bash -c 'accelerate launch --debug t.py'", f"bash -c 'accelerate launch {FILE} t.py'"),
        ("python -m accelerate.commands.launch t.py", f"python -m accelerate.commands.launch {FILE} t.py"),
        ("accelerate launch --num_processes $N t.py", f"accelerate launch {FILE} --num_processes $N t.py"),
        ("accelerate launch --same_network --tee 3 t.py", f"accelerate launch {FILE} --same_network --tee 3 t.py"),
        ("accelerate launch --megatron_lm_recompute_granularity full t.py", f"accelerate launch {FILE} t.py"),
    ],
)
def test_the_file_takes_the_place_of_what_it_says(command: str, written: str) -> None:
    assert Launch(command).written() == written
    assert Launch(written).written() == written


@pytest.mark.parametrize(
    ("command", "watched"),
    [
        ("accelerate launch t.py", f"{HOOK} accelerate launch t.py"),
        ("A=1 accelerate launch t.py", f"A=1 {HOOK} accelerate launch t.py"),
        ("srun accelerate launch t.py", f"srun {HOOK} accelerate launch t.py"),
        ("PYTHONPATH=src:x accelerate launch t.py", "PYTHONPATH={trial_folder}/hook:src:x accelerate launch t.py"),
        (
            "env A=1 B=2 accelerate launch t.py",
            f"env A=1 B=2 {HOOK.removeprefix('env ')} accelerate launch t.py",
        ),
        ("env PYTHONPATH=src accelerate launch t.py", "env PYTHONPATH={trial_folder}/hook:src accelerate launch t.py"),
        ("python -m accelerate.commands.launch t.py", f"{HOOK} python -m accelerate.commands.launch t.py"),
    ],
)
def test_the_hook_comes_before_what_pythonpath_has(command: str, watched: str) -> None:
    assert trial_hook.watched(command) == watched
    assert trial_hook.watched(watched) == watched


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch t.py",
        "PYTHONPATH=src accelerate launch t.py",
        "export PYTHONPATH=src; accelerate launch t.py",
        "bash -c 'PYTHONPATH=src accelerate launch t.py'",
        'bash -c "accelerate launch t.py"',
    ],
)
@pytest.mark.parametrize("inherited", ["", "outer"])
def test_the_shell_gives_the_launcher_both(tmp_path: Path, command: str, inherited: str) -> None:
    program = tmp_path / "accelerate"
    program.write_text('#!/bin/sh\nprintf %s "$PYTHONPATH"\n')
    program.chmod(0o755)
    text = fill_placeholders(trial_hook.watched(command), {"trial_folder": "/trial"})[0]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **({"PYTHONPATH": inherited} if inherited else {})}
    done = subprocess.run(["bash", "-uc", text], env=env, capture_output=True, text=True, check=True)
    own = "src" if "src" in command else inherited
    assert done.stdout == ":".join(filter(None, ["/trial/hook", own]))


def test_variables_replace_those_that_are_there() -> None:
    command = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=1 accelerate launch t.py"
    written = Launch(command).written(variables={"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"})
    assert written == f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 accelerate launch {FILE} t.py"


def test_options_are_read_in_every_spelling() -> None:
    launch = Launch(
        "accelerate launch --use-deepspeed --zero-stage 2 --num_processes=$N -m --mixed_precision bf16 pkg.t"
    )
    assert launch.values == {"use_deepspeed": True, "zero_stage": "2", "m": True, "mixed_precision": "bf16"}
    assert launch.unknown_names == {"num_processes"}


@pytest.mark.parametrize(
    "command", ["torchrun t.py", "accelerate config", "python train.py", "bash train.sh", "eval x"]
)
def test_other_commands_are_none_of_its(command: str) -> None:
    assert not recognises(command)
    with pytest.raises(CommandError):
        Launch(command)


def test_variables_of_a_trial_and_its_hook_share_one_env() -> None:
    written = Launch("accelerate launch t.py").written(variables={"A": "1"})
    both = trial_hook.watched(written)
    assert both.startswith("env A=1 PYTHONPATH={trial_folder}/hook") and both.count("env ") == 1
    assert (
        Launch("/usr/bin/env B=2 accelerate launch t.py")
        .written(variables={"A": "1"})
        .startswith("/usr/bin/env B=2 A=1 accelerate launch")
    )


def test_a_module_is_watched_from_in_front_of_its_interpreter() -> None:
    watched = trial_hook.watched("python -u -W ignore -m accelerate.commands.accelerate_cli launch t.py")
    assert watched.startswith("env PYTHONPATH=") and watched.endswith(
        " python -u -W ignore -m accelerate.commands.accelerate_cli launch t.py"
    )
