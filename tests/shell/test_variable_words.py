from __future__ import annotations

import pytest

from zenith_tune.shell.variables import set_variables, with_variables

OWN = {"GPUS": '"$MINE"', "PORT": "7"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("GPUS=0,1 PORT=29500 python t.py", 'GPUS="$MINE" PORT=7 python t.py'),
        ("env A=1 GPUS='0,1' torchrun t.py GPUS=9", 'env A=1 GPUS="$MINE" torchrun t.py GPUS=9'),
        ('export GPUS="0,1" A=2; echo PORT=1; python t.py', 'export GPUS="$MINE" A=2; echo PORT=1; python t.py'),
        ("PORT=1; python t.py", "PORT=7; python t.py"),
        ("mpirun -x GPUS=0 -np 2 python t.py", 'mpirun -x GPUS="$MINE" -np 2 python t.py'),
        ("PORT=1 bash -c 'GPUS=0 exec python t.py'", "PORT=7 bash -c 'GPUS=\"$MINE\" exec python t.py'"),
        ('bash -c "GPUS=0 python t.py | tee log"', 'bash -c "GPUS=\\"\\$MINE\\" python t.py | tee log"'),
        ("GPUS=0 python a.py & python b.py", 'GPUS="$MINE" python a.py & python b.py'),
        ("python t.py --gpus $GPUS", "python t.py --gpus $GPUS"),
    ],
)
def test_what_the_command_sets_is_replaced_wherever_it_stands(command: str, expected: str) -> None:
    assert with_variables(command, OWN) == expected


def test_variables_are_reported_with_their_values() -> None:
    assert set_variables("A=1 bash -c 'export B=\"2 3\"; C=$D python t.py --x E=4'") == {
        "A": "1",
        "B": "2 3",
        "C": "$D",
    }
    assert set_variables("python t.py") == {}
