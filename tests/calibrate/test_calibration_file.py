from __future__ import annotations

import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration, save_calibration
from zenith_tune.describe.framework_spec import known_frameworks
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.estimates.calibration import Calibration, MemoryCoefficients, TimeCalibration, TimeCoefficients

MINE = Calibration(
    framework="nanotron",
    time=TimeCalibration(
        coefficients=TimeCoefficients(gemm_efficiency=0.5),
        factors={"gpu:h100": {"gemm_efficiency": 1.25}, "precision:fp8": {"gemm_efficiency": 0.75}},
        trends={"expert_passes": -0.5},
        release=2025.5,
        interval=(-0.125, 0.25),
        sources={"h100": 3},
        num_own=7,
        source_sds={"work": 0.125, "host": 0.5, "messages": 0.25, "experts": 0.25},
    ),
    memory=MemoryCoefficients(activations=1.5, fixed_bytes=5e7, context_bytes=2e9, log_errors=(-0.25, 0.0, 0.5)),
    origin="our cluster, ü",
    date="2026-11-15",
    num_runs=42,
)


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    save_calibration(MINE, tmp_path / "mine.json")
    assert load_calibration(tmp_path / "mine.json") == MINE


def test_writing_twice_writes_the_same(tmp_path: Path) -> None:
    save_calibration(MINE, tmp_path / "a.json")
    save_calibration(load_calibration(tmp_path / "a.json"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def damaged(change: dict[str, Any], *path: str) -> str:
    """Return a file whose part at `path` has been changed; None as a value takes the key away."""
    data: dict[str, Any] = json.loads(json.dumps(WRITTEN))
    part = data
    for key in path:
        part = part[key]
    for key, value in change.items():
        part.pop(key)
        if value is not None:
            part[key] = value
    return json.dumps(data)


WRITTEN: dict[str, Any] = {
    "format": 1,
    "framework": "megatron",
    "time": {
        "coefficients": {"gemm_efficiency": 0.5, "thrash": 4.0},
        "factors": {"gpu:h100": {"gemm_efficiency": 1.1}},
        "trends": {"expert_passes": -0.5},
        "release": 2026.0,
        "interval": [-0.1, 0.2],
    },
    "memory": {"activations": 1.0, "log_errors": [-0.1, 0.0, 0.1]},
    "origin": "here",
    "date": "2026-11-15",
    "num_runs": 3,
}
BAD = [
    ("", "not JSON"),
    ("{", "not JSON"),
    ("[]", "JSON object"),
    ("null", "JSON object"),
    ("\ufffe\0", "not JSON"),
    (" " * (4 * 2**20 + 1), "4 MiB"),
    ("[" * 100_000, "not JSON"),
    ("{}", "has no format"),
    (damaged({"format": 2}), "format is 2"),
    (damaged({"origin": None}), "has no origin"),
    (damaged({"num_runs": "many"}), "invalid literal"),
    (damaged({"time": [1]}), "calibration"),
    (damaged({"time": "fast"}), "calibration"),
    (damaged({"coefficients": {"speed": 1.0}}, "time"), "speed"),
    (damaged({"gemm_efficiency": "0.5"}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"gemm_efficiency": True}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"gemm_efficiency": -1}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"gemm_efficiency": 0}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"num_runs": float("inf")}), "infinity"),
    (damaged({"log_errors": [0.0, 1e6]}, "memory"), "log_errors"),
    (damaged({"gemm_efficiency": float("nan")}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"gemm_efficiency": float("inf")}, "time", "coefficients"), "gemm_efficiency"),
    (damaged({"gpu:h100": 5}, "time", "factors"), "calibration"),
    (damaged({"interval": [0.1]}, "time"), "calibration"),
    (damaged({"interval": [0.2, 0.1]}, "time"), "interval"),
    (damaged({"activations": -1}, "memory"), "activations"),
    (damaged({"activations": {}}, "memory"), "activations"),
    (damaged({"log_errors": [0.1, -0.1]}, "memory"), "log_errors"),
    (damaged({"log_errors": []}, "memory"), "log_errors"),
    (damaged({"log_errors": None}, "memory"), "log_errors"),
]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_bad_file_is_one_line_that_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(UsageError) as error:
        load_calibration(path)
    assert reason in str(error.value) and "\n" not in str(error.value) and str(path) in str(error.value)


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text("\ufeff" + json.dumps(WRITTEN), encoding="utf-8")
    assert load_calibration(tmp_path / "good.json").time.coefficients.gemm_efficiency == 0.5


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            load_calibration(path)


def test_every_framework_has_a_calibration_with_plausible_values() -> None:
    for name in known_frameworks():
        calibration = default_calibration(name)
        assert calibration.num_runs > 0 and calibration.origin and calibration.date
        low, high = calibration.time.interval
        assert low < 0 < high
        for field in fields(TimeCoefficients):
            assert getattr(calibration.time.coefficients, field.name) >= 0
        for gpu in ("v100-32", "a100-80", "h100", "gb200"):
            reached = calibration.time.coefficients_for(gpu=gpu, precision="bf16", framework=name)
            assert 0.2 < reached.gemm_efficiency < 1.15, (name, gpu)


def test_an_unknown_framework_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="'megatron'"):
        default_calibration("megatorn")


def test_speed_is_shared_within_a_family_but_memory_is_the_frameworks_own() -> None:
    deepspeed, legacy = default_calibration("deepspeed"), default_calibration("megatron-legacy")
    assert deepspeed.framework == "deepspeed" and deepspeed.time == legacy.time
    assert deepspeed.memory == MemoryCoefficients() and deepspeed.num_memory_runs == 0
    assert deepspeed.origin.endswith("; memory: not fitted")


def test_memory_of_megatron_is_not_fitted_but_as_sure_as_that_of_its_tests() -> None:
    megatron, tests = default_calibration("megatron"), default_calibration("megatron-ci")
    assert megatron.num_memory_runs == 0 and megatron.origin.endswith("; memory: not fitted")
    assert megatron.memory.log_errors == tests.memory.log_errors
    assert (megatron.memory.activations, megatron.memory.logits, megatron.memory.log_middle) == (1.0, 1.0, 0.0)
    assert tests.num_memory_runs > 300 and "not fitted" not in tests.origin


def test_a_file_from_before_memory_runs_were_counted_is_read(tmp_path: Path) -> None:
    save_calibration(replace(MINE, num_memory_runs=7), tmp_path / "new.json")
    assert load_calibration(tmp_path / "new.json").num_memory_runs == 7
    (tmp_path / "old.json").write_text(json.dumps(WRITTEN), encoding="utf-8")
    assert load_calibration(tmp_path / "old.json").num_memory_runs == 0
