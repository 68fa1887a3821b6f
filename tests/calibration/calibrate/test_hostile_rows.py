"""Whatever a file holds, reading and fitting it ends in runs or in one line that says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.calibration.calibrate.rows import LLAMA, read, table
from tests.mentions import mentions
from tests.thoroughness import examples
from zenith_calibration.calibrate.calibration_fit import fit_calibration
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.errors import UsageError

MEASURED = LLAMA | {"step_time_s": "6.5", "mem_per_gpu_gib": "40", "params_b": "8", "recompute": "full"}
QUICK = MEASURED | {"framework": "Megatron-LM --transformer-impl local"}
"""Of a framework with few coefficients to fit."""
NASTY = ["", "x", "nan", "inf", "-inf", "-1", "0", "1e308", "1e-308", "9" * 400, "0x10", "١٢", "\0", '"', "4,096", "é"]


@pytest.mark.parametrize("column", sorted(MEASURED))
def test_a_missing_column_is_no_traceback(tmp_path: Path, column: str) -> None:
    row = {name: value for name, value in MEASURED.items() if name != column}
    if column in ("source_id", "model"):
        with pytest.raises(UsageError, match=r"source_id.*model"):
            read(tmp_path, row)
        return
    (run,) = read(tmp_path, row)
    unusable(run)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted(MEASURED)), st.sampled_from(NASTY), max_size=4))
def test_odd_values_are_left_out_or_fitted(tmp_path: Path, changes: dict[str, str]) -> None:
    try:
        runs = read(tmp_path, QUICK, QUICK, QUICK, QUICK | changes)
        if unusable(runs[-1]):
            return
        fitted = fit_calibration(runs, framework="megatron-local", origin="odd", date="").calibration
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert 0 < fitted.time.coefficients.gemm_efficiency < 10


def test_a_byte_order_mark_does_not_hide_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(table(MEASURED), encoding="utf-8-sig")
    assert read_measured(tmp_path)[0].source == "ours"


def test_quotes_and_line_ends_inside_a_field_stay_inside(tmp_path: Path) -> None:
    (run,) = read(tmp_path, MEASURED | {"model": 'llama "3",\r\n8b', "notes": "a, b=c; d"})
    assert run.model_name == 'llama "3",\r\n8b' and run.notes == {"a": "", "b": "c", "d": ""}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"source_id,model\n",
        b"\0\0\0",
        b"\xff\xfe" + "source_id,model\nx,y\n".encode("utf-16-le"),
        b"%PDF-1.4\x00\x01",
        b"a" * 200_000 + b"\n" + b"b" * 200_000,
        b'source_id,model\n"never ends',
    ],
)
def test_a_file_without_runs_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "runs.csv").write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_measured(tmp_path / "runs.csv")
    assert "\n" not in str(error.value) and "runs.csv" in str(error.value)


def test_rows_that_are_too_short_or_too_long_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("source_id,model,n_gpus\nours,a\nours,b,8,9,10\n")
    assert [run.num_gpus for run in read_measured(tmp_path)] == [None, 8]


@pytest.mark.parametrize("name", ["missing.csv"])
def test_a_path_that_is_none_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_measured(tmp_path / name)
    assert mentions(caught.value, "path") and "\n" not in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.csv")
    with pytest.raises(UsageError, match=r"runs\.csv"):
        read_measured(tmp_path)
