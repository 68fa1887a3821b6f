from __future__ import annotations

from pathlib import Path

import pytest

from zenith_calibration.probe.probe_job import plain_word

HOME = Path("/home/me")


@pytest.mark.parametrize(
    "idiom",
    [
        '$(cd "$(dirname "$0")" && pwd)',
        "$(cd $(dirname $0) && pwd)",
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
        '$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd -P)',
        '$(cd "$(dirname "${BASH_SOURCE}")"; pwd)',
        '$(dirname "$0")',
    ],
)
def test_the_folder_of_a_script_is_known(idiom: str) -> None:
    assert plain_word(f"{idiom}/megatron", script="jobs/train.sh", folder=HOME) == "/home/me/jobs/megatron"


@pytest.mark.parametrize("word", ["$(date)", "`hostname`", "$UNSET", "${UNSET}/x", "a$(cd /x && pwd)"])
def test_what_only_a_shell_knows_is_not_guessed(word: str) -> None:
    assert plain_word(word, script="train.sh", folder=HOME) is None


def test_the_rest_stays_as_it_is() -> None:
    assert plain_word("--lr=1e-4 $5 {tp}".replace("$5", "5$"), script="", folder=HOME) == "--lr=1e-4 5$ {tp}"
    assert plain_word("$(pwd)/data", script="train.sh", folder=HOME) == "/home/me/data"
