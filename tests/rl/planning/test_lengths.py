"""How long answers are."""

from __future__ import annotations

import numpy as np
import pytest

from zenith_rl.planning.lengths import AnswerLengths
from zenith_tune import UsageError


def test_lengths_have_the_quantiles_that_were_given_and_end_at_the_limit() -> None:
    lengths = np.sort(AnswerLengths.parse("4096:900,3500").sample(9_999))
    assert lengths[5_000] == pytest.approx(900, rel=0.01)
    assert lengths[9_900] == pytest.approx(3500, rel=0.02)
    assert lengths[-1] == 4096 and lengths[0] >= 1


def test_a_limit_alone_takes_half_of_it_for_the_median() -> None:
    found = AnswerLengths.parse("4096")
    assert (found.limit, found.p50, found.p99) == (4096, 2048, 4096)


@pytest.mark.parametrize("mean", [300, 701, 1400])
def test_a_mean_can_be_given(mean: float) -> None:
    assert AnswerLengths.of_mean(1431, mean).mean == pytest.approx(mean, rel=0.001)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "-4", "4096:", "4096:9", "4096:900,100", "4096:0,1", "4096:nan,1", "9:1,inf", "100:1e-300,1e300"],
)
def test_what_cannot_be_lengths_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--response-len takes"):
        AnswerLengths.parse(text)
