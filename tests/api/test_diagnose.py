from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune import UsageError, diagnose

COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    "--seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --bf16 --global-batch-size 32 "
)


def test_a_slow_command_gets_changes_with_predicted_gains() -> None:
    found = diagnose(command=f"{COMMAND} --micro-batch-size 1 --tensor-model-parallel-size 8", cluster="h100x8")
    assert found.is_sound and found.diagnosis is not None and not found.not_planned
    assert found.advice[0].gain > 0 and found.advice[0].change
    assert found.as_json()["advice"][0]["gain"] == found.advice[0].gain
    assert len(repr(found)) < 200 and len(repr(found.diagnosis)) < 250 and len(str(found).splitlines()) > 3


def test_a_notebook_shows_each_change_as_a_row() -> None:
    slow, good = (
        f"{COMMAND} --micro-batch-size {mbs} --tensor-model-parallel-size {tp}" for mbs, tp in ((1, 8), (4, 1))
    )
    found = diagnose(command=slow, cluster="h100x8")
    assert found._repr_html_().count("<tr>") == len(found.advice) + 1
    shown = diagnose(command=f"{good} --use-distributed-optimizer", cluster="h100x8", against="published")._repr_html_()
    assert "<table>" not in shown and "published" in shown


def test_what_a_log_says_is_no_markup_in_a_notebook(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. <script>alert(1)</script>\n")
    shown = diagnose(log, cluster="h100x8")._repr_html_()
    assert "&lt;script&gt;" in shown and "<script>" not in shown


def test_a_log_without_a_command_shows_its_causes(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = diagnose(log, cluster="h100x8")
    assert found.diagnosis is None and found.not_planned and not found.is_sound
    assert found.causes and found.as_json()["planned"] is None and found.advice == ()


def test_nothing_to_diagnose_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        diagnose()
