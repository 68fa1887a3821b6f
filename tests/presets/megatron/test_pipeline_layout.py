from __future__ import annotations

from itertools import product

import pytest

from zenith_tune.layouts.pipeline import is_laid_out, laid_out_chunks
from zenith_tune.presets.megatron.options import pipeline_layout


def expanded(text: str) -> str:
    """Write out every repetition, from the left: of the letter or the parentheses that stand before its star."""
    done, group = [""], 0
    index = 0
    while index < len(text):
        letter, index = text[index], index + 1
        if letter == "(":
            group = len(done)
        elif letter == ")":
            done[group:] = ["".join(done[group:])]
        elif letter == "*":
            stop = next((at for at in range(index, len(text)) if not text[at].isdigit()), len(text))
            done[-1], index = done[-1] * int(text[index:stop]), stop
        elif letter != ",":
            done.append(letter)
    return "".join(done)


def test_the_parser_of_these_tests_reads_the_example_of_megatron() -> None:
    assert expanded("Et*3|(tt|)*6,m|L") == "Ettt|tt|tt|tt|tt|tt|tt|m|L"
    assert expanded("(t*2|)*2,(t|)*3,tL") == "tt|tt|t|t|t|tL"


@pytest.mark.parametrize("num_layers", [3, 5, 7, 31, 61, 80, 94, 126])
@pytest.mark.parametrize("num_mtp_layers", [0, 1, 2])
def test_a_layout_has_every_layer_and_chunk_and_its_ends(num_layers: int, num_mtp_layers: int) -> None:
    seen = 0
    for pp, vp in product(range(2, num_layers), range(1, num_layers)):
        if not is_laid_out(num_layers, pp=pp, vp=vp):
            continue
        chunks = laid_out_chunks(num_layers, pp=pp, vp=vp)
        stages = expanded(pipeline_layout(chunks, num_mtp_layers=num_mtp_layers)).split("|")
        assert len(stages) == pp * vp and sum(stage.count("t") for stage in stages) == num_layers
        assert [stage.count("t") for stage in stages] == chunks
        assert stages[0] == "E" + "t" * chunks[0]
        assert stages[-1] == "t" * chunks[-1] + "m" * num_mtp_layers + "L"
        assert {*"".join(stages[1:-1])} <= {"t"}
        seen += 1
    assert seen


def test_equal_chunks_are_written_once() -> None:
    assert pipeline_layout([3, *[4] * 14, 2]) == "Et*3|(t*4|)*14,t*2L"
    assert pipeline_layout([31, 30]) == "Et*31|t*30L"
