"""A study in one file that travels: gzipped lines of JSON, first what it is, then its files, secrets masked."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from zenith_tune.calibrate.calibration_file import load_calibration
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.export import study_as_json
from zenith_tune.record.folder import ABOUT_NAME, DATABASE_NAME, StudyFolder, trial_folder
from zenith_tune.record.reader import FILE_NAME, ExportedStudy, study_names
from zenith_tune.record.restored_preset import PRIOR, RestoredPreset
from zenith_tune.record.storage import database_url
from zenith_tune.record.view import StudyHeader, StudyView, mask_lines
from zenith_tune.shell.secrets import find_secrets, mask, secrets_of_environment
from zenith_tune.strategies.guided.learned import adopt, learned_path
from zenith_tune.study.faults import is_system_fault
from zenith_tune.study.files import Json, open_regular, write_atomically, write_json
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.units import MIB

FORMAT = 1
LEARNED, NAMED = "learned", "files"
MAX_LOG_BYTES = 2 * MIB
"""Of a longer log the middle is left out."""
MAX_FILES, MAX_FILE_BYTES, MAX_BYTES = 20_000, 64 * MIB, 1024 * MIB
"""Limits of what is read from a bundle, which a stranger may have written."""
_NAME = r"(?:[\w-][\w.-]{0,99}/){0,8}[\w-][\w.-]{0,99}\.(?:json|sbatch|sh|slurm|toml|ya?ml)"
_IN_COMMAND = re.compile(rf"(?<![\w./-])(?:\./)?({_NAME})(?![\w./-])", re.ASCII)
"""A script, or a file of settings, by a relative path; nothing that reading the study would run."""
_FILE = re.compile(
    rf"{re.escape(FILE_NAME)}|{re.escape(PRIOR)}|best_command\.sh|best\.diff|{LEARNED}/[\w-][\w.-]{{0,99}}\.json|{NAMED}/{_NAME}"
    r"|trials/\d{4,9}/(?:run-\d{1,4}/)?(?:command\.sh|log(?:\.[\w-]{1,50})?\.txt)",
    re.ASCII,
)
_NO_BUNDLE = (ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedStudy:
    """A study that came by a bundle."""

    folder: Path
    num_trials: int
    versions: Mapping[str, str]
    """What was installed where it was written."""
    learned: Path | None = None
    """The calibration that the next study here begins with; None where this machine knows as much."""


def write_bundle(view: StudyView, path: Path, versions: Mapping[str, str]) -> None:
    """Write a study, but for the trials that run, into one file that only its owner may read; a device stays one."""
    target = path.resolve()
    is_device = target.exists() and not target.is_file()
    draft = target if is_device else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with (
            open(draft, "wb" if is_device else "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as packed,
            gzip.open(packed, "wt", encoding="utf-8") as file,
        ):
            about = {"bundle": FORMAT, "study": view.name, "versions": dict(versions)}
            files = ({"file": name, "text": text} for name, text in _files(view))
            for line in chain([about], files):
                file.write(json.dumps(line) + "\n")
        if not is_device:
            draft.replace(target)
    finally:
        if not is_device:
            draft.unlink(missing_ok=True)


def _files(view: StudyView) -> Iterator[tuple[str, str]]:
    secrets = _secrets(view.header)
    yield FILE_NAME, json.dumps(_masked(_content(view), secrets), default=str, allow_nan=False)
    for place, folder in _folders(view):
        for path in sorted(folder.glob("*")):
            if _FILE.fullmatch(name := f"{place}{path.name}") and not path.name.endswith(".json"):
                yield name, _text(path, secrets)
    home = Path(view.header.working_folder)
    for name in dict.fromkeys(_IN_COMMAND.findall(" ".join((view.header.command, *view.header.args.values())))):
        path = (home / name).resolve()
        if home.is_absolute() and path.is_file() and path.is_relative_to(home.resolve()):
            yield f"{NAMED}/{name}", _text(path, secrets)
    for name, path in _calibrations(view):
        with suppress(OSError, UnicodeDecodeError), open_regular(path) as file:
            yield name, file.read(MAX_FILE_BYTES).decode()


def _text(path: Path, secrets: Sequence[str]) -> str:
    lines = mask_lines(TrialLog(path).text(MAX_LOG_BYTES).split("\n"))
    return mask("\n".join(lines), secrets)


def _content(view: StudyView) -> Json:
    content = study_as_json(view.study, view.header, view.best_command, view.search)
    views = {each.number: each for each in view.trials}
    for trial in content["trials"]:
        each = views[trial["number"]]
        trial |= {"label": each.label, "started_s": each.started_s, "ended_s": each.ended_s}
    return content | {"num_pruned": view.num_pruned, "num_repeated": view.num_repeated}


def _folders(view: StudyView) -> Iterator[tuple[str, Path]]:
    """Yield the folders that have files of the study, each with its place in the bundle."""
    if view.folder is not None:
        yield "", view.folder
    for trial in view.study.runs:
        if trial.folder is not None:
            place = f"trials/{trial.number:04d}/"
            yield place, trial.folder
            yield from ((f"{place}{path.name}/", path) for path in sorted(trial.folder.glob("run-*")))


def _calibrations(view: StudyView) -> Iterator[tuple[str, Path]]:
    """Yield the calibration that the study began with, and what this machine has learned with it."""
    if view.folder is not None:
        yield PRIOR, view.folder / PRIOR
    with view.header.at_home():
        planner = RestoredPreset(view.header, view.folder, view.search.cluster).planner
    if planner is not None:
        path = learned_path(PlanSubject(model=planner.model, cluster=planner.cluster, job=planner.job))
        if path is not None:
            yield f"{LEARNED}/{path.name}", path


def _secrets(header: StudyHeader) -> list[str]:
    args = (f"{name}={shlex.quote(str(value))}" for name, value in header.args.items())
    texts = (header.command, shlex.join(header.options or ()), *args)
    return list(dict.fromkeys([*secrets_of_environment(os.environ), *chain(*map(find_secrets, texts))]))


def _masked(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        return mask(value, secrets)
    if isinstance(value, Mapping):
        return {key: _masked(each, secrets) for key, each in value.items()}
    return [_masked(each, secrets) for each in value] if isinstance(value, list | tuple) else value


def import_bundle(path: Path, output_dir: Path, name: str | None = None) -> ImportedStudy:
    """Make a study of a bundle in an output folder; one that is there is never written over."""
    with _opened(path) as lines:
        with _refused(path):
            about = next(lines, None)
            if not isinstance(about, dict) or about.get("bundle") != FORMAT:
                raise ValueError(f"it does not begin with bundle {FORMAT}")
            versions = {str(each): str(version) for each, version in about["versions"].items()}
        folder = StudyFolder(output_dir, name or str(about["study"]))
        database = folder.output_dir / DATABASE_NAME
        known = study_names(database_url(database)) if database.is_file() else []
        if folder.path.exists() or folder.path.name in known:
            problem = f"{output_dir} has a study {folder.path.name!r} already"
            raise StudyError(problem, hint="give the imported one another --study-name, or choose another --output-dir")
        try:
            folder.output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".import-", dir=folder.output_dir) as draft:
                place = Path(draft) / "study"
                with _refused(path):
                    _unpack(lines, place, folder.path)
                    num_trials = sum(each.trial.is_searched for each in ExportedStudy(place).view().trials)
                    calibrations = [each.name for each in place.glob(f"{LEARNED}/*") if load_calibration(each)]
                write_json(place / ABOUT_NAME, {"bundle": FORMAT, "study": str(about["study"]), "versions": versions})
                place.rename(folder.path)
        except OSError as error:
            if is_system_fault(error):
                raise
            problem = f"the output folder {output_dir} cannot be written ({error.strerror})"
            raise UsageError(problem, hint="choose another --output-dir") from error
    learned = next((adopt(folder.path / LEARNED / each) for each in calibrations), None)
    return ImportedStudy(folder=folder.path, num_trials=num_trials, versions=versions, learned=learned)


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[Json]]:
    try:
        file = open_regular(Path(os.path.realpath(path)))
    except OSError as error:
        raise UsageError(f"bundle {str(path)!r} cannot be read ({error.strerror})", hint="check the path") from None
    with file, gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        yield _lines(unpacked)


def _lines(file: gzip.GzipFile) -> Iterator[Json]:
    num_files = num_bytes = 0
    while line := file.readline(MAX_FILE_BYTES + 1):
        num_files, num_bytes = num_files + 1, num_bytes + len(line)
        if num_files > MAX_FILES or len(line) > MAX_FILE_BYTES or num_bytes > MAX_BYTES:
            raise ValueError("it is larger than any study")
        yield json.loads(line)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn whatever damaged and foreign files raise into one line."""
    try:
        yield
    except (*_NO_BUNDLE, UsageError, gzip.BadGzipFile, zlib.error) as error:
        why = error.problem if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        problem = f"{path} must be a bundle as zenithtune export --bundle writes it, but is not ({why[:300]})"
        raise UsageError(problem, hint="export the study again") from None


def _unpack(lines: Iterator[Json], place: Path, final: Path) -> None:
    """Write the files of a bundle into a new folder; `final` is where that will be."""
    place.mkdir(mode=0o700)
    (place / NAMED).mkdir()
    for line in lines:
        name, text = line["file"], line["text"]
        if not isinstance(name, str) or not _FILE.fullmatch(name) or (path := place / name).exists():
            raise ValueError(f"it has a file {name!r}, or has it twice")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _settled(text, final) if name == FILE_NAME else text, is_private=True)


def _settled(text: str, folder: Path) -> str:
    """Return a study.json whose trials lie in `folder`, and whose preset names no file with code."""
    content = json.loads(text)
    for trial in filter(None, (*content["trials"], content["best"], content["baseline"])):
        trial["folder"] = str(trial_folder(folder, int(trial["number"])))
    content["working_folder"] = str(folder / NAMED)
    content["preset"] = re.sub(r"[^\w-]", "_", content["preset"])
    return json.dumps(content)
