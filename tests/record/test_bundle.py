"""A study in one file: written on one machine, read on another."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Done, running
from tests.report.studies import BASELINE, BEST, COMMAND, TRIALS, Recorded, header, ok, recorded
from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration, save_calibration
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.record import bundle
from zenith_tune.record.reader import FILE_NAME
from zenith_tune.record.restored_preset import PRIOR
from zenith_tune.record.source import find_study

LEARNED = "megatron-h100.json"

Run = Callable[..., Done]


@pytest.fixture
def zenithtune(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """What runs a command in a folder of its own, as on another machine."""
    here = tmp_path / "laptop"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("ZENITHTUNE_HOME", str(tmp_path / "laptop-home"))
    return lambda command, *arguments: running(command, capsys)(*map(str, arguments))


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The output folder of another machine, with the study s."""
    return recorded(tmp_path / "cluster" / "out").folder.output_dir


def exported(zenithtune: Run, cluster: Path) -> Path:
    file = cluster / "s.study.gz"
    done = zenithtune("export", "s", "--output-dir", cluster, "--bundle", file)
    assert done.code == 0 and str(file) in done.out, done.err
    return file


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


def written(file: Path, lines: Sequence[object]) -> Path:
    file.write_bytes(gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode()))
    return file


def learned(num_own: int) -> Calibration:
    known = default_calibration("megatron")
    return replace(known, time=replace(known.time, num_own=num_own))


def test_a_study_of_another_machine_says_what_it_said_there(zenithtune: Run, cluster: Path) -> None:
    file = exported(zenithtune, cluster)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    there = find_study("s", output_dir=cluster).view()
    done = zenithtune("import", file)
    assert done.code == 0 and done.out.count("\n") == 1, done.err
    here = find_study("s").view()
    same = ("value", "outcome", "params", "command", "cause", "step_s", "is_baseline", "rerun_of", "extra")
    for one, other in zip(here.trials, there.trials, strict=True):
        assert [getattr(one.trial, name) for name in same] == [getattr(other.trial, name) for name in same]
        assert (one.label, one.started_s, one.ended_s) == (other.label, other.started_s, other.ended_s)
        assert one.log_lines(5) == other.log_lines(5) != []
    for name in ("best_command", "search", "direction", "num_pruned", "unit"):
        assert getattr(here, name) == getattr(there, name)


def test_it_is_listed_reported_compared_and_diagnosed(zenithtune: Run, cluster: Path) -> None:
    zenithtune("import", exported(zenithtune, cluster), "--study-name", "theirs")
    assert "theirs" in zenithtune("list").out
    report = zenithtune("report", "theirs", "--format", "json")
    assert json.loads(report.out)["best"] == BEST
    assert zenithtune("compare", "theirs", cluster / "s").code == 0
    doctor = zenithtune("doctor", "theirs")
    assert doctor.code == 0 and f"trial {BEST} of theirs" in doctor.out, doctor.err
    assert zenithtune("doctor", "zenithtune-out/theirs").code == 0
    assert zenithtune("resume", "theirs").code == 2


def test_scripts_and_settings_that_the_command_names_come_with_it(zenithtune: Run, tmp_path: Path) -> None:
    job = tmp_path / "cluster" / "job"
    (job / "conf").mkdir(parents=True)
    (job / "conf/train.sh").write_text(f"HF_TOKEN=correcthorse {COMMAND} $@\n")
    (job / "train.py").write_text("import os\n")
    (tmp_path / "cluster" / "above.sh").write_text("above\n")
    command = "bash ./conf/train.sh train.py ../above.sh /etc/hosts.json"
    about = replace(header(job), command=command, working_folder=str(job))
    about.args["model"] = "config.json"
    study = Recorded(tmp_path / "cluster" / "out", "s", about).run(TRIALS[:2])
    study.record.close()
    file = exported(zenithtune, study.folder.output_dir)
    assert zenithtune("import", file).code == 0
    here = find_study("s").view()
    assert Path(here.header.working_folder) == Path("zenithtune-out/s/files").absolute()
    found = [path.name for path in Path("zenithtune-out/s/files").rglob("*") if path.is_file()]
    assert json.loads(zenithtune("report", "s", "--format", "json").out)["why_no_plan"] == ""
    assert sorted(found) == ["config.json", "train.sh"]
    assert "correcthorse" not in gzip.decompress(file.read_bytes()).decode()


def test_no_secret_is_in_the_file(zenithtune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = header(tmp_path / "cluster", options=["--args", "wandb_key=argswordhorse"])
    about.args["hub_token"] = "optionwordhorse"
    study = Recorded(tmp_path / "cluster" / "out", "s", about)
    monkeypatch.setenv("MY_API_TOKEN", "environmenthorse")
    log = "HF_TOKEN=correcthorse\nwe print environmenthorse and optionwordhorse, argswordhorse\n"
    number = study.start(BASELINE, log)
    study.finish(number, replace(BASELINE, extra={"note": "environmenthorse"}))
    study.start(ok(1, 1, 1, 48_000.0), "HF_TOKEN=runninghorse")
    study.record.close()
    text = gzip.decompress(exported(zenithtune, study.folder.output_dir).read_bytes()).decode()
    assert "we print ***" in text and "horse" not in text


def test_what_its_machine_learned_is_where_the_next_study_begins(
    zenithtune: Run, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "cluster-home" / "learned", tmp_path / "laptop-home" / "learned"
    theirs.mkdir(parents=True)
    save_calibration(learned(30), theirs / LEARNED)
    save_calibration(learned(3), cluster / "s" / PRIOR)
    monkeypatch.setenv("ZENITHTUNE_HOME", str(theirs.parent))
    file = exported(zenithtune, cluster)
    monkeypatch.setenv("ZENITHTUNE_HOME", str(ours.parent))
    assert str(ours / LEARNED) in zenithtune("import", file).out
    assert load_calibration(ours / LEARNED).time.num_own == 30
    assert load_calibration(Path("zenithtune-out/s") / PRIOR).time.num_own == 3
    for num_own, expected in ((31, 31), (29, 30)):
        save_calibration(learned(num_own), ours / LEARNED)
        assert zenithtune("import", file, "--study-name", f"s{num_own}").code == 0
        assert load_calibration(ours / LEARNED).time.num_own == expected, "what rests on more runs stays"


def test_a_study_that_is_there_is_never_written_over(zenithtune: Run, cluster: Path) -> None:
    file = exported(zenithtune, cluster)
    before = {path: path.read_bytes() for path in cluster.rglob("*") if path.is_file()}
    done = zenithtune("import", file, "--output-dir", cluster)
    assert done.code == 2 and "--study-name" in done.err
    (cluster / "s").rename(cluster / "moved")  # the database still has it
    assert zenithtune("import", file, "--output-dir", cluster).code == 2
    (cluster / "moved").rename(cluster / "s")
    assert {path: path.read_bytes() for path in cluster.rglob("*") if path.is_file()} == before
    assert zenithtune("import", file).code == 0 and zenithtune("import", file).code == 2


def test_a_study_that_runs_goes_without_the_trials_that_run(zenithtune: Run, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "cluster" / "out", "s", header(tmp_path / "cluster")).run(TRIALS[:3])
    study.start(TRIALS[3])
    study.record.close()
    zenithtune("import", exported(zenithtune, study.folder.output_dir))
    assert [each.number for each in find_study("s").view().trials] == [0, 1, 2]


HOSTILE: list[object] = [
    *("../x.sh", "/tmp/x.sh", "files/../../x.sh", "files/.ssh/x.json", "trials/0000/../../x/log.txt", "files/x.py"),
    *("study.json\n", "x" * 5000, "", None, 7, ["study.json"], "studies.db", "files/Makefile", "con\0.sh"),
]


def test_a_file_with_another_name_than_those_of_studies_is_refused(
    zenithtune: Run, cluster: Path, tmp_path: Path
) -> None:
    lines = lines_of(exported(zenithtune, cluster))
    for name in HOSTILE:
        refused(zenithtune, written(tmp_path / "hostile.gz", [*lines, {"file": name, "text": "touch pwned"}]))


def refused(zenithtune: Run, file: Path) -> None:
    """The one line says which file it is, and nothing is left behind."""
    before = left_in(file.parent)
    done = zenithtune("import", file)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert file.name in done.err and len(done.err) < 700
    assert left_in(file.parent) == before


def left_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name != "zenithtune-out")


def archive(kind: str) -> bytes:
    """Return a file such as others pack: with a link, and a way out of the folder."""
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("../../study.json", "{}")
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            link = tarfile.TarInfo("study.json")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    return packed.getvalue()


def test_damaged_and_foreign_files_are_one_line(zenithtune: Run, cluster: Path, tmp_path: Path) -> None:
    good = exported(zenithtune, cluster).read_bytes()
    plain = gzip.decompress(good)
    about, study, *rest = plain.splitlines(keepends=True)
    contents = {
        "empty": b"",
        "text": b"hello",
        "zip": archive("zip"),
        "tar": archive("tar.gz"),
        "half": good[: len(good) // 2],
        "flipped": good[:200] + bytes([good[200] ^ 255]) + good[201:],
        "no-end": good[:-9],
        "no-study": gzip.compress(about + b"".join(rest)),
        "twice": gzip.compress(about + study + study),
        "deep": gzip.compress(about + b"[" * 200_000),
        "number": gzip.compress(about + b"1" * 5000),
        "list": gzip.compress(about + b"[]\n"),
        "other-format": gzip.compress(plain.replace(b'"bundle": 1', b'"bundle": 2', 1)),
        "no-versions": gzip.compress(b'{"bundle": 1, "study": "s", "versions": []}\n' + study),
        "binary-text": gzip.compress(about + b'{"file": "study.json", "text": "\\ud800"}\n'),
        "no-trials": gzip.compress(about + b'{"file": "study.json", "text": "{}"}\n'),
        "odd-trial": gzip.compress(plain.replace(b'\\"value\\": 61000.0', b'\\"value\\": {}')),
        "odd-calibration": gzip.compress(plain + b'{"file": "learned/x.json", "text": "{}"}\n'),
    }
    for name, content in contents.items():
        file = tmp_path / "laptop" / f"{name}.gz"
        file.write_bytes(content)
        refused(zenithtune, file)
    (tmp_path / "laptop" / "folder.gz").mkdir()
    os.mkfifo(tmp_path / "laptop" / "pipe.gz")
    for name in ("folder.gz", "pipe.gz", "missing.gz"):
        refused(zenithtune, tmp_path / "laptop" / name)
    outside = gzip.compress(plain.replace(b'"study": "s"', b'"study": "../../s"', 1))
    (tmp_path / "s.gz").write_bytes(outside)
    done = zenithtune("import", tmp_path / "s.gz")
    assert done.code == 2 and "'../../s'" in done.err and "--study-name" in done.err


def test_a_bundle_that_is_larger_than_a_study_is_refused(
    zenithtune: Run, cluster: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = exported(zenithtune, cluster).rename(tmp_path / "laptop" / "s.gz")
    for limit in ("MAX_FILES", "MAX_FILE_BYTES", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(bundle, limit, 7)
            refused(zenithtune, file)


def test_nothing_that_a_bundle_holds_is_run(zenithtune: Run, cluster: Path, tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    (tmp_path / "evil.py").write_text(f"open({str(pwned)!r}, 'w')\n")
    lines = lines_of(exported(zenithtune, cluster))
    content = json.loads(lines[1]["text"])
    for number, change in enumerate(
        (
            {"preset": f"{tmp_path}/evil.py:Evil"},
            {"args": {**content["args"], "model": f"{tmp_path}/evil.py:Evil"}},
            {"preset": "megatron-lm", "command": f"make --eval='$(shell touch {pwned})' train"},
            {"preset": "megatron-lm", "command": f"torchrun pretrain_gpt.py $(touch {pwned})"},
        )
    ):
        lines[1] = {"file": FILE_NAME, "text": json.dumps(content | change)}
        done = zenithtune("import", written(tmp_path / "evil.gz", lines), "--study-name", f"evil{number}")
        assert done.code == 0, done.err
        for command in ("report", "doctor"):
            zenithtune(command, f"evil{number}")
    assert not pwned.exists()


def test_trials_lie_in_the_imported_study_whatever_the_bundle_says(
    zenithtune: Run, cluster: Path, tmp_path: Path
) -> None:
    (tmp_path / "private" / "trials" / "0000").mkdir(parents=True)
    lines = lines_of(exported(zenithtune, cluster))
    lines[1]["text"] = lines[1]["text"].replace(str(cluster / "s"), str(tmp_path / "private"))
    zenithtune("import", written(tmp_path / "moved.gz", lines))
    folders = {each.trial.folder for each in find_study("s").view().trials}
    assert all(str(folder).startswith(str(Path("zenithtune-out/s").absolute())) for folder in folders)


def test_an_imported_study_is_not_rebuilt_without_its_records(zenithtune: Run, cluster: Path) -> None:
    assert zenithtune("import", exported(zenithtune, cluster)).code == 0
    refused = zenithtune("recover", "zenithtune-out/s")
    assert refused.code == 2 and "came by zenithtune import" in refused.err
    assert zenithtune("recover", "zenithtune-out").code == 2  # nor is it one of the studies of its folder
    assert not Path("zenithtune-out/studies.db").exists()
    assert "continued there alone" in zenithtune("resume", "s").err


def test_a_pipe_stays_a_pipe(zenithtune: Run, cluster: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert zenithtune("export", "s", "--output-dir", cluster, "--bundle", pipe).code == 0
        assert gzip.decompress(os.read(reading, 1 << 16)).startswith(b'{"bundle"')
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    folder = zenithtune("export", "s", "--output-dir", cluster, "--bundle", tmp_path)
    assert folder.code == 2 and len(folder.err.splitlines()) == 1
