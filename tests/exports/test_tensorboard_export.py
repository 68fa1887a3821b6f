"""A study in TensorBoard's event files, read back record by record with their checksums."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Done, running
from tests.mentions import mentions
from tests.report.hostile import write_hostile
from tests.report.studies import BEST, TRIALS, Recorded, header, ok, recorded
from tests.requirements import need_module

pytestmark = pytest.mark.filterwarnings("ignore")  # protobuf's and tensorboardX's own

BEST_SO_FAR = "study/best_so_far"


@pytest.fixture
def study(tmp_path: Path) -> Recorded:
    need_module("tensorboard", "tensorboardX")
    return recorded(tmp_path / "out")


def export(study: Recorded, folder: Path, capsys: pytest.CaptureFixture[str]) -> Done:
    name, output_dir = study.folder.path.name, str(study.folder.output_dir)
    return running("export", capsys)(name, "--output-dir", output_dir, "--tensorboard", str(folder))


def records(path: Path) -> Iterator[bytes]:
    """Yield the records of an event file: length, its checksum, data, their checksum."""
    from tensorboardX.crc32c import crc32c

    def masked(data: bytes) -> int:
        crc = int(crc32c(data))
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    content, start = path.read_bytes(), 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        data = content[start + 12 : start + 12 + length]
        assert struct.unpack_from("<I", content, start + 8) == (masked(content[start : start + 8]),)
        assert struct.unpack_from("<I", content, start + 12 + length) == (masked(data),)
        yield data
        start += 16 + length


def values(folder: Path) -> list[tuple[int, Any]]:
    """Return the step and value of everything that the event file of a folder holds."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    events = [Event.FromString(data) for data in records(path)]
    return [(event.step, value) for event in events for value in event.summary.value]


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(step, value.simple_value) for step, value in values(folder) if value.tag == tag]


def parameters(folder: Path) -> dict[str, Any]:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    (start_info,) = [value for _, value in values(folder) if value.tag == "_hparams_/session_start_info"]
    start = HParamsPluginData.FromString(start_info.metadata.plugin_data.content).session_start_info
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def test_curves_run_over_the_trials(study: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = export(study, tmp_path / "runs", capsys)
    assert mentions(done.out, f"{tmp_path}/runs/s", 10, f"tensorboard --logdir {tmp_path}/runs"), done.err
    best = curve(tmp_path / "runs" / "s", BEST_SO_FAR)
    assert best[:4] == [(1, 48_000.0), (2, 48_000.0), (3, 55_000.0), (4, 61_000.0)] and best[-1] == (9, 61_000.0)
    memory = dict(curve(tmp_path / "runs" / "s", "study/peak_memory_gib"))
    assert memory[BEST] == 61.0 and 2 not in memory


def test_each_trial_has_its_parameters_and_measurements(
    study: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(study, tmp_path / "runs", capsys)
    folder = tmp_path / "runs" / "s" / f"trial-{BEST:04d}"
    written = parameters(folder)
    assert (written["tp"], written["pp"], written["recompute_granularity"]) == (2.0, 2.0, "full")
    assert (written["trial"], written["outcome"]) == ("TP2 PP2 mbs1 full", "ok")
    assert curve(folder, "trial/value") == [(BEST, 61_000.0)]
    assert parameters(tmp_path / "runs" / "s" / "trial-0002")["outcome"] == "oom"
    assert curve(tmp_path / "runs" / "s" / "your-command", "trial/value") == [(0, 50_000.0)]


def test_called_again_it_replaces_its_own_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_module("tensorboard", "tensorboardX")
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    runs = tmp_path / "runs"
    export(study, runs, capsys)
    (runs / "mine").mkdir()
    study.run([ok(8, 1, 1, 70_000.0)]).record.close()
    assert export(study, runs, capsys).code == 0
    assert curve(runs / "s", BEST_SO_FAR)[-1] == (10, 70_000.0)
    assert sorted(path.name for path in runs.iterdir()) == ["mine", "s"]
    (runs / "s" / ".zenithtune").unlink()
    refused = export(study, runs, capsys)
    assert refused.code == 2 and mentions(refused.err, runs / "s")
    assert curve(runs / "s", BEST_SO_FAR)[-1] == (10, 70_000.0)


def test_texts_that_try_to_be_something_else_stay_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_module("tensorboard", "tensorboardX")
    study = write_hostile(tmp_path / "out")
    assert export(study, tmp_path / "runs", capsys).code == 0
    assert "<script>window.pwned=1</script>" in parameters(tmp_path / "runs" / "hostile" / "trial-0001")


def test_a_folder_that_cannot_be_written_is_one_line(
    study: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    done = export(study, tmp_path / "file", capsys)
    assert done.code == 2 and mentions(done.err, tmp_path / "file") and done.err.count("\n") == 1


def test_without_tensorboardx_the_line_names_the_extra(
    study: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = export(study, tmp_path / "runs", capsys)
    assert done.code == 2 and "'zenith-tune[tensorboard]'" in done.err


def test_an_export_goes_somewhere(study: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    done = running("export", capsys)("s", "--output-dir", str(study.folder.output_dir))
    assert done.code == 2 and mentions(done.err, "--mlflow", "--tensorboard")
