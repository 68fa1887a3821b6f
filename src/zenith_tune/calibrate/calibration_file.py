"""Calibrations as files: those that come with the package, and those that a user fits and shares."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

from zenith_tune.calibrate.time_family import family_of
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.errors import UsageError
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.estimate.memory_coefficients import MemoryCoefficients
from zenith_tune.estimate.time_calibration import TimeCalibration
from zenith_tune.estimate.time_coefficients import TimeCoefficients

FORMAT = 1
MAX_MIB = 4


def default_calibration(framework: str) -> Calibration:
    """Return the calibration that comes with the package, or plain defaults for a framework without measurements.

    >>> default_calibration("megatron").num_runs > 0
    True
    """
    return _packaged(load_framework(framework).name)


@functools.cache
def _packaged(framework: str) -> Calibration:
    folder = resources.files("zenith_tune.calibrate").joinpath("defaults")
    # Speed is shared within a family of frameworks where the framework itself was not measured.
    for name in (framework, family_of(framework).name, "megatron"):
        path = folder.joinpath(f"{name}.json")
        if path.is_file():
            return _from_json(json.loads(path.read_text(encoding="utf-8")), name)
    return Calibration(framework=framework)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file."""
    try:
        if path.stat().st_size > MAX_MIB * 2**20:
            raise UsageError(f"{path} must be a calibration, but is larger than {MAX_MIB} MiB: give another file")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"calibration {str(path)!r} cannot be read ({error.strerror}): check the path") from None
    except ValueError as error:
        raise _no_calibration(str(path), f"it is not JSON: {' '.join(str(error).split())}") from None
    return _from_json(data, str(path))


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file, readable and in a stable order."""
    data = {"format": FORMAT} | asdict(calibration)
    path.write_text(json.dumps(_rounded(data), indent=1) + "\n", encoding="utf-8")


def _from_json(data: Any, source: str) -> Calibration:
    try:
        if data["format"] != FORMAT:
            raise _no_calibration(source, f"its format is {data['format']!r}, not {FORMAT}")
        time, memory = dict(data["time"]), dict(data["memory"])
        time["coefficients"] = TimeCoefficients(**_numbers(time["coefficients"], TimeCoefficients))
        time["interval"] = tuple(map(float, time["interval"]))
        memory["log_errors"] = tuple(map(float, memory["log_errors"]))
        about = {name: data[name] for name in ("framework", "origin", "date", "num_runs")}
        return Calibration(time=TimeCalibration(**time), memory=MemoryCoefficients(**memory), **about)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise _no_calibration(source, f"{type(error).__name__}: {error}") from None


def _numbers(values: dict[str, Any], kind: type) -> dict[str, float]:
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise ValueError(f"unknown coefficients {', '.join(unknown)}")
    numbers = {name: float(value) for name, value in values.items()}
    if bad := sorted(name for name, value in numbers.items() if not 0 <= value < float("inf")):
        raise ValueError(f"{', '.join(bad)} must be numbers from 0")
    return numbers


def _no_calibration(source: str, reason: str) -> UsageError:
    return UsageError(f"{source} must be a calibration as zenithtune calibrate writes it, but {reason}: make it anew")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(child) for key, child in value.items()}
    return [_rounded(child) for child in value] if isinstance(value, list | tuple) else value
