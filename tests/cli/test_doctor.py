"""The command `zenithtune doctor`, on commands, logs and studies."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Run, as_json, running
from tests.conftest import ROOT
from tests.data_folder import measured_data
from tests.doctor.causes import logs
from tests.mentions import mentions
from tests.report.studies import BEST, recorded
from zenith_tune.calibrate.calibration_file import default_calibration, save_calibration
from zenith_tune.record.export import export
from zenith_tune.record.folder import StudyFolder, trial_folder
from zenith_tune.record.reader import ExportedStudy
from zenith_tune.record.restored_preset import PRIOR
from zenith_tune.record.view import StudyHeader
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial

SHAPE = [
    *("--num-layers", "32", "--hidden-size", "4096", "--ffn-hidden-size", "14336", "--swiglu", "--seq-length", "8192"),
    *("--num-attention-heads", "32", "--group-query-attention", "--num-query-groups", "8", "--vocab-size", "128256"),
    *("--disable-bias-linear", "--normalization", "RMSNorm", "--position-embedding-type", "rope", "--bf16"),
    "--untie-embeddings-and-output-weights",
]
LAUNCH = ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *SHAPE, "--use-distributed-optimizer"]
GOOD = ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--micro-batch-size", "1"]
PIPELINE = [*GOOD, "--pipeline-model-parallel-size", "4", "--global-batch-size", "8"]
H100 = ("--cluster", "h100x8")
LINE = " iteration {0}/ 10 | elapsed time per iteration (ms): {1} | global batch size: 64 | lm loss: 1.0 |\n"
TOPOLOGIES = ROOT / "tests" / "describe" / "topologies"


Doctor = Run


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return running("doctor", capsys)


def log_of(folder: Path, *lines: str, seconds: float = 6.5) -> Path:
    path = folder / "train.log"
    steps = "".join(LINE.format(number, f"{seconds * 1000:.1f}") for number in range(1, 6))
    path.write_text(steps + "".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "before", ["", "Fatal Python error: Aborted\n" + LINE.format(9, 9999.0)], ids=["once", "restarted"]
)
def test_a_good_log_of_megatron_without_its_arguments_has_its_measured_speed(
    doctor: Doctor, tmp_path: Path, before: str
) -> None:
    path = tmp_path / "train.log"
    path.write_text(before + "".join(LINE.format(number, 6500.0) for number in range(1, 31)))
    done = doctor(str(path), "--json")
    assert done.code == 0 and as_json(done)["measured"]["step_s"] == pytest.approx(6.5)


@pytest.mark.parametrize("data", [b"", b"\0" * 9, b"\x7fELF\x02\xff\xfe\x00" * 99, b"dear diary\n"])
def test_a_file_that_is_no_log_of_a_training_is_refused_in_one_line(
    doctor: Doctor, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "train.log").write_bytes(data)
    done = doctor(str(tmp_path / "train.log"))
    assert done.code == 2 and done.out == "" and len(done.err.splitlines()) == 1
    assert ("is empty" in done.err) == (not data.strip(b"\0"))


@pytest.mark.parametrize("hint", [["--cluster", "nix"], ["--model", "nix"], ["--args", "n_gpus=x"]])
def test_what_is_said_of_a_run_is_checked_where_no_plan_needs_it_too(
    doctor: Doctor, tmp_path: Path, hint: list[str]
) -> None:
    done = doctor(str(log_of(tmp_path)), *hint)
    assert done.code == 2 and done.out == "" and hint[1].rpartition("=")[2] in done.err


def test_a_command_is_held_against_the_nearest_published_run(doctor: Doctor) -> None:
    done = doctor("--against", "published", *H100, "--json", "--", *LAUNCH, *PIPELINE)
    against = as_json(done)["against"]
    published, causes = against["published"], {cause["name"]: cause for cause in against["causes"]}
    assert done.code == 0 and not against["is_measured"]
    assert published["url"].startswith("https://") and published["cluster"].startswith("h100x")
    assert math.prod(cause["factor"] for cause in causes.values()) == pytest.approx(against["gap"])
    assert sum(cause["share"] for cause in causes.values()) == pytest.approx(1.0)
    assert causes["pipeline"]["through"] == "bubble" and causes["pipeline"]["factor"] > 1.1
    shown = doctor("--against", "published", *H100, "--", *LAUNCH, *PIPELINE)
    assert published["url"] in shown.out and mentions(shown.out, "pipeline", "predicted", "unexplained")


def test_a_run_to_compare_with_that_is_nowhere_is_one_line(doctor: Doctor) -> None:
    done = doctor("--against", "nix", *H100, "--", *LAUNCH, *PIPELINE)
    assert done.code == 2 and done.out == "" and "nix" in done.err and len(done.err.splitlines()) == 1


def test_a_log_without_a_plan_is_not_compared(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(str(log_of(tmp_path)), "--against", "published", "--json")
    assert done.code == 0 and as_json(done)["against"]["published"] is None


def test_a_command_alone_is_diagnosed_by_its_plan(doctor: Doctor) -> None:
    done = doctor(*H100, "--", *LAUNCH, *PIPELINE)
    assert done.code == 0 and done.err == ""
    title = done.out.splitlines()[0]
    for part in ("llama3-8b", "h100x8", "TP2 PP4 Z1 mbs1 SP", "batch 8", "sequence 8192", "megatron"):
        assert part in title
    assert re.search(r"^1\. 27% .*bubble", done.out, re.MULTILINE)
    assert "pp 4 -> 1, dp 1 -> 4" in done.out and "predicted +" in done.out


def test_the_documentation_shows_what_is_printed(doctor: Doctor) -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    slow = doctor(*H100, "--", *LAUNCH, *PIPELINE, "--recompute-activations").out
    large = [*GOOD[:-1], "4", "--pipeline-model-parallel-size", "2", "--global-batch-size", "64"]
    nodes = ["torchrun", "--nnodes", "2", *LAUNCH[1:]]
    too_large = doctor("--cluster", "h100x16", "--", *nodes, *large).out
    assert f"```text\n{slow}```" in page and too_large.partition("it is 98%")[2] in page


def test_a_good_command_gets_no_advice(doctor: Doctor) -> None:
    done = doctor(*H100, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert done.code == 0 and "compute 95%" in done.out and "\n1. " not in done.out
    shown = as_json(doctor(*H100, "--json", "--", *LAUNCH, *GOOD, "--global-batch-size", "64"))
    assert shown["is_healthy"] and shown["advice"] == []


def test_json_has_numbers_and_gains(doctor: Doctor) -> None:
    shown = as_json(doctor(*H100, "--json", "--", *LAUNCH, *PIPELINE))
    assert (shown["model"], shown["cluster"], shown["fits"], shown["is_healthy"]) == (
        "llama3-8b",
        "h100x8",
        True,
        False,
    )
    first = shown["advice"][0]
    assert first["name"] == "pipeline_bubble" and first["number"] == pytest.approx(3 / 11)
    assert first["gain"] == pytest.approx(shown["planned"]["step_s"] / first["planned"]["step_s"] - 1)


def test_the_modules_of_selective_recomputation_are_read(doctor: Doctor) -> None:
    selective = [*GOOD, "--global-batch-size", "64", "--recompute-granularity", "selective"]
    shown = as_json(doctor(*H100, "--json", "--", *LAUNCH, *selective))
    assert [advice["name"] for advice in shown["advice"]] == ["idle_recompute"]
    shown = as_json(doctor(*H100, "--json", "--", *LAUNCH, *selective, "--recompute-modules", "mlp", "layernorm"))
    assert "idle_recompute" not in [advice["name"] for advice in shown["advice"]]


def test_a_topology_says_how_far_tensor_parallelism_may_reach(doctor: Doctor) -> None:
    topology = ("--topology", str(TOPOLOGIES / "l40s_pcie.txt"))
    done = doctor(*H100, *topology, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert re.search(r"^note: no NVLink .*\bSYS\b", done.out, re.MULTILINE)
    assert re.search(r"no NVLink .*TP2 .*50 GB/s", done.out)
    shown = as_json(doctor(*H100, *topology, "--json", "--", *LAUNCH, *GOOD, "--global-batch-size", "64"))
    assert "slow_tensor_link" in [advice["name"] for advice in shown["advice"]]
    assert shown["tensor_parallel_reason"].startswith("no NVLink")


def test_what_writes_a_layout_has_the_same_topology(
    doctor: Doctor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node := tmp_path / "my node.txt").write_text((TOPOLOGIES / "l40s_pcie.txt").read_text())
    staged = ["--pipeline-model-parallel-size", "8", "--micro-batch-size", "1", "--global-batch-size", "8"]
    shown = as_json(doctor(*H100, "--topology", str(node), "--json", "--", *LAUNCH, *staged))
    better = next(advice for advice in shown["advice"] if advice["command"])
    words = shlex.split(better["command"])
    assert words[words.index("--topology") + 1] == str(node)
    written = running("plan", capsys)(*words[2:])
    assert written.code == 0 and f"# {better['planned']['name']} for" in written.out, written.err


def test_a_log_and_its_command_are_a_measured_run(doctor: Doctor, tmp_path: Path) -> None:
    memory = "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 60000.0 | max reserved: 61440.0"
    path = log_of(tmp_path, memory)
    done = doctor(str(path), *H100, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert done.code == 0, done.err
    assert "measured 6.5 s" in done.out and "60.0 GiB" in done.out and "\n1. " not in done.out


def test_a_log_of_a_full_memory_gets_what_it_costs(doctor: Doctor, tmp_path: Path) -> None:
    memory = "[Rank 3] (after 2 iterations) memory (MB) | max allocated: 70000.0 | max reserved: 79900.0"
    path = log_of(tmp_path, memory, seconds=40.0)
    shown = as_json(doctor(str(path), *H100, "--json", "--", *LAUNCH, *GOOD, "--global-batch-size", "64"))
    assert shown["advice"][0]["name"] == "full_memory" and shown["advice"][0]["gain"] > 0.5
    assert shown["measured"]["step_s"] == pytest.approx(40.0)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "CUDA out of memory. (tp=8 ep=1 mbs=4 activation=full)",
    ],
)
def test_a_log_that_ran_out_of_memory_gets_what_helps(doctor: Doctor, tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{line}\n")
    done = doctor(
        str(path), *H100, "--", *LAUNCH, *PIPELINE[:-4], "--micro-batch-size", "4", "--global-batch-size", "64"
    )
    assert done.code == 1, done.err
    assert line[:22] in done.out
    for name in ("more micro-batches", "recomputation", "sharding", "tensor parallelism"):
        assert name in done.out
    assert "fits" in done.out and "% time)" in done.out


def test_a_model_that_no_layout_makes_fit_is_exit_code_1(doctor: Doctor) -> None:
    args = ("--args", "model=llama3-405b")
    done = doctor(*H100, *args, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert done.code == 1 and "no layout fits" in done.out
    shown = doctor(*H100, *args, "--json", "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert shown.code == 1 and json.loads(shown.out)["way_out"] is None


def test_a_real_log_shows_its_job_itself(doctor: Doctor) -> None:
    shown = as_json(doctor(str(measured_data() / "logs" / "megatron_steady60.log"), "--cluster", "h200x1", "--json"))
    assert (shown["model"], shown["global_batch"], shown["seq_len"]) == ("llama-like 0.9B", 8, 2048)
    assert shown["planned"]["layout"]["micro_batch"] == 2 and shown["measured"]["step_s"] == pytest.approx(
        0.43, abs=0.02
    )
    assert shown["planned"]["memory_bytes"] == pytest.approx(shown["measured"]["peak_memory_bytes"], rel=0.15)


def test_a_real_log_that_ran_out_of_memory_has_ways_out(doctor: Doctor) -> None:
    done = doctor(str(measured_data() / "logs" / "megatron_oom.log"), "--cluster", "h200x1", "--json")
    shown = json.loads(done.out)
    assert done.code == 1 and [cause["name"] for cause in shown["causes"]] == ["out_of_memory"]
    assert shown["measured"]["out_of_memory"] and "OutOfMemoryError" in shown["measured"]["cause"]
    fitting = {remedy["name"]: remedy["change"] for remedy in shown["remedies"] if remedy["fits"]}
    assert fitting["more micro-batches"] == "mbs 8 -> 4"


def trial(number: int, outcome: Outcome, step_s: float | None = None, **params: Any) -> Trial:
    value = 64 * 8192 / step_s if step_s else None
    return Trial(params=params, outcome=outcome, value=value, number=number, step_s=step_s, unit="tokens/s")


def study_of(folder: Path, *trials: Trial, args: dict[str, str] | None = None) -> Path:
    study, place = Study(Direction.MAXIMIZE), StudyFolder(folder, "tuned")
    for each in trials:
        study.add(each)
    place.create()
    command = " ".join([*LAUNCH, *GOOD, "--global-batch-size", "64"])
    known = args if args is not None else {"cluster": "h100x8"}
    export(study, StudyHeader(preset="megatron-lm", args=known, command=command, evaluator="megatron"), place, None)
    return place.path


def test_the_script_of_a_relative_command_is_read_where_the_study_ran(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, place = Study(Direction.MAXIMIZE), StudyFolder(tmp_path / "out", "tuned")
    study.add(replace(trial(0, Outcome.OK, 6.5), is_baseline=True))
    place.create()
    command = " ".join([*LAUNCH, *GOOD, "--global-batch-size", "64"])
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.sh").write_text(f'{command} "$@"\n')
    header = StudyHeader(
        preset="megatron-lm",
        args={"cluster": "h100x8"},
        command="bash train.sh",
        evaluator="megatron",
        working_folder=str(tmp_path / "job"),
    )
    export(study, header, place, "bash train.sh --micro-batch-size 2")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert as_json(doctor("../out/tuned", "--json"))["global_batch"] == 64
    assert Path.cwd() == tmp_path / "elsewhere"
    for best in ("bash train.sh --micro-batch-size 2", "/opt/train --data here"):
        export(study, header, place, best)
        assert place.best_command.read_text().splitlines()[-2:] == [f"cd {tmp_path / 'job'} || exit", best]


def point(**changed: Any) -> dict[str, Any]:
    sizes = {"tp": 2, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}
    return {**sizes, **changed}


def test_the_best_trial_of_a_study_is_diagnosed(doctor: Doctor, tmp_path: Path) -> None:
    slow, best = trial(1, Outcome.OK, 9.0, **point(tp=8)), trial(2, Outcome.OK, 8.0, **point(recompute="full/uniform1"))
    folder = study_of(tmp_path, slow, best)
    done = doctor(str(folder))
    assert done.code == 0, done.err
    assert f"trial 2 of {folder}: llama3-8b on h100x8, TP2 DP4 Z1 mbs1 SP full/uniform1" in done.out
    assert "measured 8.0 s" in done.out and re.search(r"^1\. \d+% .*recomputes", done.out, re.MULTILINE)
    assert doctor(str(folder / "study.json")).out == done.out


def test_a_study_is_known_by_its_name_as_in_a_report(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "zenithtune-out", name="first")
    done = doctor("first", "--output-dir", str(tmp_path / "zenithtune-out"))
    assert done.code == 0 and f"trial {BEST} of first: " in done.out
    monkeypatch.chdir(tmp_path)
    assert doctor("first").out == done.out
    unknown = doctor("firts")
    assert unknown.code == 2 and all(part in unknown.err for part in ("'firts'", "'first'?", "Known: first."))


def test_a_step_that_the_plan_cannot_explain_is_a_mismatch(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(str(log_of(tmp_path, seconds=1.2)), *H100, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    *_, line = done.out.splitlines()
    assert done.code == 0 and "% off" in line
    assert "--cluster" in line and "model=" not in line, "the command itself states the model"


def test_a_study_in_which_all_ran_out_of_memory_gets_what_helps(doctor: Doctor, tmp_path: Path) -> None:
    done = doctor(str(study_of(tmp_path, trial(1, Outcome.OOM, **point(mbs=16)))), "--json")
    shown = json.loads(done.out)
    assert done.code == 1
    assert shown["measured"]["out_of_memory"] and shown["remedies"][0]["fits"]


def test_a_study_in_which_all_failed_shows_what_ended_them(doctor: Doctor, tmp_path: Path) -> None:
    place = trial_folder(tmp_path / "tuned", 1)
    failed = replace(trial(1, Outcome.ERROR, **point(mbs=16)), folder=place, command="bash train.sh")
    folder = study_of(tmp_path, failed)
    assert doctor(str(folder)).code == 2, "without a log there is nothing to say"
    place.mkdir(parents=True)
    (place / "log.txt").write_text(
        "Traceback (most recent call last):\nRuntimeError: NCCL error: unhandled system error\n"
    )
    moved = folder.rename(tmp_path / "moved")
    done = doctor(str(moved), "--json")
    assert done.code == 1 and [cause["name"] for cause in json.loads(done.out)["causes"]] == ["communication"]


def test_another_cluster_may_be_named_for_a_study(doctor: Doctor, tmp_path: Path) -> None:
    folder = study_of(tmp_path, trial(1, Outcome.OK, 9.0, **point()), args={})
    assert as_json(doctor(str(folder), "--cluster", "a100x8", "--json"))["cluster"] == "a100-80x8"


@pytest.mark.parametrize("changed", [{"tp": "many"}, {"tp": None}, {"tp": 0}, {"mbs": -1}, {"pp": [2]}])
def test_a_study_of_other_parameters_is_refused_in_one_line(
    doctor: Doctor, tmp_path: Path, changed: dict[str, Any]
) -> None:
    done = doctor(str(study_of(tmp_path, trial(1, Outcome.OK, 9.0, **point(**changed)))))
    assert done.code == 2 and done.err.count("\n") == 1
    ((name, value),) = changed.items()
    name = {"mbs": "micro_batch"}.get(name, name)
    assert "'megatron-lm'" in done.err or (f"{name} " in done.err and f"is {value}" in done.err)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["study", "log", "after --"]),
        (["nowhere.log"], ["'nowhere.log'", "No such file"]),
        (["empty"], ["empty/study.json'"]),
        (["broken"], ["broken/study.json"]),
        (["unsuccessful"], ["unsuccessful", "ran out of memory"]),
        (["plain.log"], ["plain.log", "training run"]),
        (["plain.log", *H100, "--", *LAUNCH, *PIPELINE], ["plain.log", "speed"]),
        ([*H100, "--", "echo", "hello"], ["no preset", "--preset"]),
        (["--cluster", "h10x8", "--", *LAUNCH, *PIPELINE], ["unknown GPU 'h10'", "'h100'?"]),
        (["--cluster", "h100x4", "--", *LAUNCH, *PIPELINE], ["--cluster h100x8"]),
        ([*H100, "--", *LAUNCH, *GOOD, "--expert-model-parallel-size", "2"], ["ep must be 1", "experts"]),
        ([*H100, "--risk", "nan", "--", *LAUNCH], ["--risk", "nan"]),
        ([*H100, "--risk", "7", "--", *LAUNCH], ["'--risk'", "7"]),
        ([*H100, "--topology", "nowhere", "--", *LAUNCH, *PIPELINE], ["--topology 'nowhere'"]),
        ([*H100, "--topology", "plain.log", "--", *LAUNCH, *PIPELINE], ["topology", "GPU0"]),
        ([*H100, "--args", "tp", "--", *LAUNCH], ["--args", "k=v,k=v", "'tp'"]),
        ([*H100, "--preset", "megatorn-lm", "--", *LAUNCH], ["'megatorn-lm'", "'megatron-lm'?"]),
        ([*H100, "--", *LAUNCH, *PIPELINE, "--tensor-model-parallel-size", "3"], ["tp*pp*cp"]),
        (["empty", "--", *LAUNCH], ["study", "leave -- COMMAND out"]),
        (["--wat"], ["No such option '--wat'", "zenithtune doctor --help"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "broken": "[]",
        "unsuccessful": '{"trials": [], "command": "", "preset": "", "args": {}}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text(content)
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.log").write_text("hello\n")
    done = doctor(*arguments)
    assert done.code == 2 and done.out == ""
    assert done.err.count("\n") == 1 and all(part in done.err for part in parts), done.err


def test_a_mistake_is_reported_before_the_planner_is_loaded() -> None:
    program = (
        "import sys; from zenith_tune.cli.main import main\n"
        "try: main(sys.argv[1:])\nfinally: print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", *H100, "--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 2 and done.stdout == "False\n" and "model" in done.stderr


DEAD = {
    "timeout": logs.steps() + "".join(logs.WATCHDOG.format(rank, 880) for rank in range(7)),
    "nan": logs.steps(loss="nan"),
    "straggler": logs.steps() + logs.STRAGGLER.format(0, 150.0, 5, 2.0) * 3,
    "crash": logs.steps() + logs.CRASH,
    "configuration": logs.REFUSED,
    "out_of_memory": logs.steps() + logs.OUT_OF_MEMORY,
    "data_stall": logs.steps() + logs.TIMERS.format(2500.0),
}


@pytest.mark.parametrize("name", DEAD)
def test_a_run_that_died_or_waits_is_exit_code_1_with_its_cause(doctor: Doctor, tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(DEAD[name])
    done = doctor(str(path), *H100, "--json", "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    shown = json.loads(done.out)
    assert done.code == 1 and not shown["is_healthy"] and shown["planned"]
    (cause,) = shown["causes"]
    assert cause["name"] == name and cause["evidence"] and cause["actions"]
    text = doctor(str(path), *H100, "--", *LAUNCH, *GOOD, "--global-batch-size", "64")
    assert text.code == 1 and cause["evidence"][0] in text.out and cause["actions"][0] in text.out


@pytest.mark.parametrize("name", ["timeout", "nan", "crash", "out_of_memory"])
def test_a_log_alone_is_enough_for_its_cause(doctor: Doctor, tmp_path: Path, name: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(DEAD[name])
    done = doctor(str(path), "--json")
    shown = json.loads(done.out)
    assert done.code == 1 and [cause["name"] for cause in shown["causes"]] == [name]
    assert shown["planned"] is None and shown["not_planned"]
    assert shown["measured"]["step_s"] == (None if name == "out_of_memory" else 6.5)
    assert shown["causes"][0]["evidence"][0] in doctor(str(path)).out


@pytest.mark.parametrize("log", [logs.TRAINER, logs.TITAN, logs.BRIDGE], ids=["trainer", "titan", "bridge"])
def test_a_log_of_another_trainer_alone_has_its_speed(doctor: Doctor, tmp_path: Path, log: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(log)
    shown = as_json(doctor(str(path), "--json"))
    assert shown["is_healthy"] and 1 < shown["measured"]["step_s"] < 2.1
    died = tmp_path / "died.log"
    died.write_text(log + logs.CRASH)
    assert doctor(str(died)).code == 1


def test_a_log_of_the_trainer_is_not_asked_for_arguments_of_megatron(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(logs.TRAINER)
    shown = as_json(doctor(str(path), "--model", "llama3-8b", "--json"))
    assert "Megatron" not in shown["not_planned"] and "-- COMMAND" in shown["not_planned"]


def test_a_cluster_of_more_gpus_than_the_command_starts_is_no_secret(doctor: Doctor) -> None:
    shown = as_json(doctor("--cluster", "h100x64", "--json", "--", *LAUNCH, *PIPELINE))
    assert shown["cluster"] == "h100x8" and mentions(shown["cluster_reason"], "h100x64", "64 GPUs", "8")
    assert shown["cluster_reason"] in doctor("--cluster", "h100x64", "--", *LAUNCH, *PIPELINE).out
    assert "cluster_reason" not in as_json(doctor(*H100, "--json", "--", *LAUNCH, *PIPELINE))


def test_a_model_of_small_layers_is_held_up_by_the_host(doctor: Doctor) -> None:
    small = [*("--num-layers", "24", "--hidden-size", "512", "--num-attention-heads", "8", "--seq-length", "512")]
    rest = ["--vocab-size", "32000", "--bf16", "--micro-batch-size", "1", "--global-batch-size", "8"]
    shown = as_json(doctor(*H100, "--json", "--", *LAUNCH[:4], *small, *rest))
    (cause,) = shown["causes"]
    assert cause["name"] == "host_bound" and cause["figures"]["share"] > 0.25 and not cause["is_fatal"]


def test_a_model_is_named_as_for_a_plan(doctor: Doctor, tmp_path: Path) -> None:
    config = tmp_path / "tiny"
    config.mkdir()
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    (config / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 32000, **sizes}))
    bare = [*LAUNCH[:4], "--seq-length", "4096", "--bf16", *GOOD, "--global-batch-size", "64"]
    for name in ("llama2-7b", "meta-llama/Llama-2-7b-hf", str(config)):
        shown = as_json(doctor(*H100, "--model", name, "--json", "--", *bare))
        assert shown["model"] in ("llama2-7b", "tiny")
    unknown = doctor(*H100, "--model", "lama2-7b", "--", *bare)
    assert unknown.code == 2 and "'llama2-7b'?" in unknown.err


def test_tensor_parallelism_over_nodes_is_the_finding_even_where_no_change_is_advised(doctor: Doctor) -> None:
    wide = ["torchrun", "--nnodes", "2", "--nproc-per-node", "8", "pretrain_gpt.py", "--seq-length", "4096", "--bf16"]
    sizes = ["--tensor-model-parallel-size", "16", "--sequence-parallel", "--micro-batch-size", "1"]
    command = [*wide, *sizes, "--global-batch-size", "8", "--use-distributed-optimizer"]
    shown = as_json(doctor("--cluster", "h100x16", "--model", "llama3-70b", "--json", "--", *command))
    named = [advice["finding"] for advice in shown["advice"] if advice["name"] == "slow_tensor_link"]
    assert any("2 nodes" in line for line in (*named, *shown["warnings"]))
    full = doctor("--cluster", "h100x16", "--model", "llama3-405b", "--json", "--", *command)
    assert any("2 nodes" in line for line in json.loads(full.out)["warnings"])


def test_what_a_command_leaves_open_is_asked_for_at_once(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(logs.TRAINER)
    command = ["--", "python", "train.py", "--per_device_train_batch_size", "2", "--max_steps", "9"]
    (tmp_path / "train.py").write_text("from transformers import Trainer\nTrainer().train()\n")
    done = doctor(str(path), "--preset", "trainer", *command)
    assert done.code == 2 and all(f"{option} " in done.err for option in ("--model", "--seq", "--cluster")), done.err
    assert "--model" in doctor(str(path)).out


def test_the_installation_is_described_alone(doctor: Doctor) -> None:
    assert [doctor("--self", *more).code for more in ([], ["train.log"], ["--json"], ["--", "python"])] == [0, 2, 2, 2]


def test_speeds_that_no_gpu_has_are_not_compared(doctor: Doctor, tmp_path: Path) -> None:
    for name, step_ms in (("fast.log", 1.0), ("slow.log", 6500.0)):
        (tmp_path / name).write_text("".join(LINE.format(number, step_ms) for number in range(1, 31)))
    command = shlex.join([*LAUNCH, *PIPELINE])
    done = doctor(
        str(tmp_path / "slow.log"),
        *H100,
        "--against",
        f"{tmp_path / 'fast.log'} -- {command}",
        "--",
        *LAUNCH,
        *PIPELINE,
    )
    assert done.code == 0 and "not compared: the other run would have" in done.out, done.out + done.err


def test_the_log_of_a_trial_needs_nothing_more_than_its_study(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [trial_folder(tmp_path / "tuned", number) for number in (1, 2, 3)]
    out = replace(trial(2, Outcome.OOM, **point(mbs=16)), folder=places[1])
    slow, died = trial(1, Outcome.OK, 9.0, **point(tp=8)), trial(3, Outcome.ERROR, **point(tp=4))
    study_of(tmp_path, replace(slow, folder=places[0]), trial(4, Outcome.OK, 5.0, **point()), out,
             replace(died, folder=places[2]))  # fmt: skip
    for place, text in zip(
        places, (LINE.format(1, 9000.0), "", "Traceback (most recent call last):\nRuntimeError: no\n"), strict=True
    ):
        place.mkdir(parents=True)
        (place / "log.txt").write_text(text)
    found = [doctor(str(place / "log.txt")) for place in places]
    assert [done.code for done in found] == [0, 1, 1], [done.err for done in found]
    assert "trial 1 of " in found[0].out and "TP8" in found[0].out and "measured 9.0 s" in found[0].out
    assert "ran out of memory" in found[1].out and "RuntimeError: no" in found[2].out
    assert "trial 4 of the study is faster: 5.0 s a step, 1.80x" in found[0].out, found[0].out
    monkeypatch.chdir(places[0])
    assert "TP8" in doctor("log.txt").out
    (tmp_path / "tuned" / "study.json").write_text("[]")
    assert "TP8" not in doctor("log.txt").out and "9.0 s" in doctor("log.txt").out


def test_nothing_is_advised_of_a_trial_that_its_study_beats_and_doctor_and_page_predict_alike(
    doctor: Doctor, tmp_path: Path
) -> None:
    place = trial_folder(tmp_path / "tuned", 1)
    slow = replace(trial(1, Outcome.OK, 9.0, **point(recompute="full/uniform1")), folder=place)
    study_of(tmp_path, slow, trial(2, Outcome.OK, 1.0, **point()))
    place.mkdir(parents=True)
    (place / "log.txt").write_text(LINE.format(1, 9000.0))
    usual = json.loads(doctor(str(place / "log.txt"), "--json").out)
    assert usual["advice"] == [] and "trial 2" in usual["warnings"][0]
    fitted = default_calibration("megatron")
    slower = replace(fitted.time.coefficients, gemm_efficiency=fitted.time.coefficients.gemm_efficiency / 2)
    save_calibration(replace(fitted, time=replace(fitted.time, coefficients=slower)), tmp_path / "tuned" / PRIOR)
    planned = json.loads(doctor(str(place / "log.txt"), "--json").out)["planned"]
    assert planned["step_s"] > 1.2 * usual["planned"]["step_s"]
    page = StudyDigest(ExportedStudy(tmp_path / "tuned" / "study.json")).object()
    assert page["trials"][0]["predicted"]["step_s"] == pytest.approx(planned["step_s"])


def test_a_study_without_layouts_has_what_it_measured(doctor: Doctor, tmp_path: Path) -> None:
    study, place = Study(Direction.MAXIMIZE), StudyFolder(tmp_path, "tuned")
    study.add(replace(trial(1, Outcome.OK, 9.0, bs=4), step_s=None))
    place.create()
    export(study, StudyHeader(preset="space", args={"space": "bs=4,8"}, command="python t.py", evaluator=""), place, "")
    done = doctor(str(place.path))
    assert done.code == 0 and "58,254 tokens/s" in done.out and "knows no layouts" in done.out, done.err
