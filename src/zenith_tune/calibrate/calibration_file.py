"""Calibrations as files: those that come with the package, and those that a user fits and shares."""

from __future__ import annotations

import functools
import json
import reprlib
from dataclasses import asdict, fields, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from zenith_tune.calibrate.time_family import family_of
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import (
    ERROR_SOURCES,
    SOURCE_SDS,
    Calibration,
    MemoryCoefficients,
    TimeCalibration,
    TimeCoefficients,
)
from zenith_tune.study.files import read_regular, write_output
from zenith_tune.units import MIB

FORMAT = 1
MAX_BYTES = 4 * MIB
MAX_VALUE = 1e15
MAX_LOG = 20.0
"""Largest logarithm of an error."""
SAME_MEMORY_CODE = ("megatron", "megatron-legacy", "megascale", "internevo")
"""Frameworks that share the code, and so the memory errors, of Megatron Core's tests."""


def default_calibration(framework: str) -> Calibration:
    """Return the calibration that comes with the package, or plain defaults for a framework without measurements.

    >>> default_calibration("megatron").num_runs > 0
    True
    """
    return _packaged(load_framework(framework).name)


@functools.cache
def _packaged(framework: str) -> Calibration:
    # A framework without measurements takes the speed of its family, but never its memory.
    names = [name for name in (framework, family_of(framework).name, "megatron") if _default_file(name).is_file()]
    if not names:
        return Calibration(framework=framework)
    found = _read_default(names[0])
    if names[0] == framework and found.num_memory_runs:
        return found
    memory = found.memory if names[0] == framework else MemoryCoefficients()
    if framework in SAME_MEMORY_CODE:
        memory = replace(memory, log_errors=_read_default("megatron-ci").memory.log_errors)
    origin = f"{found.origin}; memory: not fitted"
    time = found.time if framework in family_of(names[0]).frameworks else replace(found.time, sources={})
    return replace(found, framework=framework, time=time, memory=memory, origin=origin, num_memory_runs=0)


def _read_default(name: str) -> Calibration:
    return _from_json(json.loads(_default_file(name).read_text(encoding="utf-8")), name)


def _default_file(name: str) -> Traversable:
    return resources.files("zenith_tune.calibrate").joinpath("defaults", f"{name}.json")


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file."""
    try:
        data = json.loads(read_regular(path, MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        problem = f"calibration {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="check the path") from None
    except (ValueError, RecursionError) as error:
        raise _no_calibration(str(path), f"is not JSON: {' '.join(str(error).split())}") from None
    return _from_json(data, str(path))


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file, readable and in a stable order."""
    data = {"format": FORMAT} | asdict(calibration)
    write_output(path, json.dumps(_rounded(data), indent=1) + "\n")


def _from_json(data: Any, source: str) -> Calibration:
    if not isinstance(data, dict):
        raise _no_calibration(source, "is no JSON object")
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}, not {FORMAT}")
        return Calibration(
            framework=str(data["framework"]),
            time=_time(data["time"]),
            memory=_memory(data["memory"]),
            origin=str(data["origin"]),
            date=str(data["date"]),
            num_runs=int(data["num_runs"]),
            num_memory_runs=int(data.get("num_memory_runs", 0)),
        )
    except KeyError as error:
        raise _no_calibration(source, f"has no {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _no_calibration(source, f"{error}") from None


def _time(data: dict[str, Any]) -> TimeCalibration:
    low, high = (_number("interval", end, least=-MAX_LOG, most=MAX_LOG) for end in data["interval"])
    if not low < high:
        raise ValueError(f"interval must rise, but is {low} to {high}")
    return TimeCalibration(
        coefficients=TimeCoefficients(**_numbers(data["coefficients"], TimeCoefficients)),
        factors={kind: _numbers(factors, TimeCoefficients) for kind, factors in data["factors"].items()},
        trends=_numbers(data["trends"], TimeCoefficients, least=-MAX_VALUE),
        release=_number("release", data["release"]),
        interval=(low, high),
        error_sds=ERROR_SOURCES | {name: _number(name, sd) for name, sd in data.get("error_sds", {}).items()},
        sources={gpu: int(_number("sources", number)) for gpu, number in data.get("sources", {}).items()},
        num_own=int(_number("num_own", data.get("num_own", UNSTATED_OWN))),
        source_sds=SOURCE_SDS | {name: _number(name, sd) for name, sd in data.get("source_sds", {}).items()},
    )


UNSTATED_OWN = 3
"""Number of the user's own runs behind a file of an earlier release: as many as a fit takes at least."""
RETIRED = ("imbalance", "handover_nodes")
"""Coefficients in files of earlier releases that now describe the job and the framework."""


def _memory(data: dict[str, Any]) -> MemoryCoefficients:
    values = _numbers({name: value for name, value in data.items() if name != "log_errors"}, MemoryCoefficients)
    errors = tuple(_number("log_errors", value, least=-MAX_LOG, most=MAX_LOG) for value in data["log_errors"])
    if len(errors) < 2 or list(errors) != sorted(errors):
        raise ValueError("log_errors must be quantiles in rising order")
    return MemoryCoefficients(**values, log_errors=errors)


def _numbers(values: dict[str, Any], kind: type, *, least: float = 0.0) -> dict[str, float]:
    values = {name: value for name, value in values.items() if name not in RETIRED}
    if unknown := sorted(set(values) - {field.name for field in fields(kind)}):
        raise ValueError(f"unknown coefficients {', '.join(unknown)}")
    found = {}
    for name, value in values.items():
        if name.startswith("log_"):
            lowest = -MAX_VALUE
        else:  # rates are divided by efficiencies
            lowest = 1e-9 if least == 0 and name.endswith("_efficiency") else least
        found[name] = _number(name, value, least=lowest)
    return found


def _number(name: str, value: Any, *, least: float = 0.0, most: float = MAX_VALUE) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, but is {reprlib.repr(value)}")
    return float(value)


def _no_calibration(source: str, reason: str) -> UsageError:
    return UsageError(
        f"{source} must be a calibration as zenithtune calibrate writes it, but {reason}", hint="fit it again"
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(child) for key, child in value.items()}
    return [_rounded(child) for child in value] if isinstance(value, list | tuple) else value
