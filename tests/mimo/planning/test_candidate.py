"""Candidates of multimodal layouts by name."""

from __future__ import annotations

from zenith_mimo.planning.candidate import MimoCandidate


def test_a_candidate_is_named_by_its_degrees() -> None:
    candidate = MimoCandidate.of(4, encoder=(1, 1), language=(2, 1), encoder_ranks=2, micro_batch=1)
    assert candidate.label == "encoder dp2 on 2 | llm tp2 on 2 | mbs1"
