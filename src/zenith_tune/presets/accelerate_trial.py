"""One trial of a job that uses Accelerate: its file, its command and its name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from zenith_tune.presets.accelerate.backend import Backend
from zenith_tune.presets.accelerate.command import ACCUMULATION_VARIABLE, HOOK_FOLDER, Launch
from zenith_tune.presets.accelerate.deepspeed import OFFLOADS, DeepSpeedBackend
from zenith_tune.presets.accelerate.job import FSDP_TYPE, PLAIN_TYPE
from zenith_tune.presets.accelerate.settings import AccelerateSettings
from zenith_tune.shell import CommandLine
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.zero_progressive.axes import OFF
from zenith_tune.study.parameters import Value

DS_FILE = "ds_config.json"
DS_PATH = f"{{trial_folder}}/{DS_FILE}"
_SHORT = {"tp": "TP", "pp": "PP", "cp": "CP", "ep": "EP", "stage": "Z", "mbs": "mbs", "zero": "zero"}


@functools.cache
def _hook_text() -> str:
    return Path(__file__).with_name("hook.py").read_text(encoding="utf-8")


HOOK_FILES = {f"{HOOK_FOLDER}/sitecustomize.py": _hook_text()}
"""What a trial's PYTHONPATH begins with."""


def settings_of(backend: Backend, params: Mapping[str, Value]) -> AccelerateSettings:
    """Return the trial's configuration: all that the job's own says, with a point's values."""
    job = backend.job
    common = {
        "compute_environment": "LOCAL_MACHINE",
        "num_processes": job.num_gpus,
        "num_machines": job.num_machines,
        "machine_rank": job.settings.get("machine_rank") or 0,
    }
    return job.settings.having({**common, **backend.changes(params)})


def ds_file(backend: Backend, params: Mapping[str, Value]) -> dict[str, str]:
    """Return DeepSpeed's JSON as a file, where the job has one."""
    config = backend.ds_config(params) if isinstance(backend, DeepSpeedBackend) else None
    return {DS_FILE: config.text} if config is not None else {}


def trial_command(backend: Backend, command: str, params: Mapping[str, Value]) -> str:
    """Return the command with the trial's file, and with the script's options for what the file cannot say."""
    job, gas = backend.job, backend.accumulation(params)
    values: dict[str, Value] = {**params, "gas": gas, "gbs": backend.global_batch}
    text, filled = fill_placeholders(command, values)
    options = {"mbs": job.mbs_option, "gas": job.gas_option, "recompute": job.recompute_option}
    wanted = {option: values[name] for name, option in options.items() if option and name in values}
    given = {option: value for option, value in wanted.items() if _name_of(options, option) not in filled}
    text = _with_options(text, given)
    needs_variable = job.backend in (PLAIN_TYPE, FSDP_TYPE) and job.gas_option is None and "gas" not in job.carriers
    variables = [f"{ACCUMULATION_VARIABLE}={gas}"] if needs_variable and "mbs" in params else []
    return Launch(text).written(_json_options(backend), variables=variables)


def point_label(backend: Backend, params: Mapping[str, Value]) -> str:
    """Return a point in a few words; what has no choice goes without saying."""
    words = []
    for name, choices in backend.axes.items():
        value = params[name]
        if len(choices) == 1 or (value == OFF and name in OFFLOADS):
            continue
        if isinstance(value, bool):
            words.append(name if value else f"no-{name}")
        else:
            words.append(f"{_SHORT[name]}{value}" if name in _SHORT else f"{name}={value}")
    return " ".join(words)


def _json_options(backend: Backend) -> dict[str, str]:
    """Return the launcher's options that only the command can give: a path in the trial's folder."""
    job = backend.job
    if job.ds_config is None:
        return {}
    precision = job.settings.word("mixed_precision")
    # In the file, beside a JSON, Accelerate would refuse it.
    return {"deepspeed_config_file": DS_PATH, **({"mixed_precision": precision} if precision else {})}


def _name_of(options: Mapping[str, str | None], option: str) -> str:
    return next(name for name, each in options.items() if each == option)


def _with_options(command: str, options: Mapping[str, Value]) -> str:
    """Return the command with these options; one that is added is spelled as it is here, which is what scripts know."""
    line = CommandLine(command)
    present = {option: value for option, value in options.items() if line.has(option)}
    added = {option: value for option, value in options.items() if option not in present}
    # Whatever spelling the command prefers, a name without hyphens has only one.
    names = {f"--zenithtune{index}": option for index, option in enumerate(added)}
    text = line.set({**present, **{name: added[option] for name, option in names.items()}}).text if options else command
    for name, option in names.items():
        text = text.replace(name, option, 1)
    return text
