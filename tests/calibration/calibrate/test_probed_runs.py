from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.probe.probed import PIPELINE, llama_planner, probed_layout
from tests.mentions import mentions
from zenith_calibration.calibrate.probed_runs import FILE_NAME, MAX_BYTES, read_probes
from zenith_calibration.probe.probe_file import probe_object, write_probe
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES
from zenith_tune.study.trial import Outcome

PLANNER = llama_planner()
SUBJECT = PlanSubject(model=PLANNER.model, cluster=PLANNER.cluster, job=PLANNER.job)
BLOCKS = replace(PIPELINE, pp=2, recompute="full/block", recompute_layers=4, flash_attention=False)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """Return what a probe writes, as JSON has it."""
    written: dict[str, Any] = json.loads(json.dumps(probe_object(SUBJECT, [probed_layout()]), default=str))
    return written


def refused(place: Path) -> str:
    with pytest.raises(UsageError) as error:
        read_probes(place)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_stage_comes_back_as_a_run(tmp_path: Path) -> None:
    probed = [probed_layout(slower=1.2), probed_layout(BLOCKS)]
    path = write_probe(tmp_path, probe_object(SUBJECT, probed))
    runs = read_probes(tmp_path)
    assert path == tmp_path / FILE_NAME and read_probes(path) == runs
    assert [run.probed_stage for run in runs] == [0, 1, 3, 0, 1]
    stages = [stage.probe for each in probed for stage in each.stages]
    assert [(run.step_s, run.memory_bytes) for run in runs] == [(each.step_s, each.allocated_bytes) for each in stages]
    assert {run.memory_kind for run in runs} == {"allocated"}
    first, *_, last = runs
    assert (first.model, first.framework, first.gpu, first.num_gpus) == (PLANNER.model, "megatron", "h100", 64)
    assert (first.seq_len, first.precision, first.gpus_per_node) == (4096, "bf16", 8)
    expected = {"tp": 8, "pp": 4, "dp": 2, "zero": 1, "mbs": 1, "gbs": 16, "sequence_parallel": True}
    assert expected.items() <= first.layout.items(), "the batch is the probe's own: 8 micro-batches on 2 ranks"
    assert RECOMPUTE_NAMES[last.layout["recompute"]] == "full/block" and last.layout["recompute_layers"] == 4
    assert last.layout["flash_attention"] is False
    assert [unusable(run) for run in runs] == [None] * 5


def test_a_rank_is_a_run_of_the_gpu_that_it_ran_on(tmp_path: Path) -> None:
    for name, gpu in (("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80"), ("", "h100"), ("Fake", "h100")):
        write_probe(tmp_path, probe_object(SUBJECT, [probed_layout(gpu=name)]))
        assert {run.gpu for run in read_probes(tmp_path)} == {gpu}


def test_latent_attention_comes_back(tmp_path: Path) -> None:
    model = load_model("deepseek-v3")
    write_probe(tmp_path, probe_object(replace(SUBJECT, model=model), [probed_layout()]))
    assert read_probes(tmp_path)[0].model == model


def test_stages_that_did_not_train_are_no_runs(tmp_path: Path) -> None:
    write_probe(tmp_path, probe_object(SUBJECT, [probed_layout(outcome=Outcome.OOM, step_s=None), probed_layout()]))
    assert len(read_probes(tmp_path)) == 3


@pytest.mark.parametrize(
    ("known", "kind"),
    [({"allocated_bytes": None}, "reserved"), ({"allocated_bytes": None, "reserved_bytes": None}, "")],
)
def test_memory_of_another_kind_is_called_so(tmp_path: Path, known: dict[str, Any], kind: str) -> None:
    write_probe(tmp_path, probe_object(SUBJECT, [probed_layout(**known)]))
    run = read_probes(tmp_path)[0]
    assert run.memory_kind == kind and (run.memory_bytes is None) == (kind == "")


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", "3", "{}", '{"model": []}', "\x00", "NaN"])
def test_what_is_no_probe_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert mentions(refused(tmp_path), FILE_NAME, "probe")


CHANGES: list[tuple[list[Any], Any]] = [
    (["model"], None),
    (["model", "latent_attention"], {"q_rank": 1}),
    (["layouts"], 3),
    (["layouts", 0], []),
    (["layouts", 0, "layout", "colour"], 1),
    (["layouts", 0, "layout", "recompute"], "some"),
    (["layouts", 0, "stages"], None),
]


@pytest.mark.parametrize(("place", "value"), CHANGES, ids=lambda each: str(each)[:50])
def test_values_that_no_probe_writes_are_one_line(
    tmp_path: Path, content: dict[str, Any], place: list[Any], value: Any
) -> None:
    changed = copy.deepcopy(content)
    at: Any = changed
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (tmp_path / FILE_NAME).write_text(json.dumps(changed))
    assert mentions(refused(tmp_path), FILE_NAME, "probe")


@pytest.mark.parametrize(
    "key", ["model", "framework", "gpu", "gpus_per_node", "seq_len", "precision", "dispatcher", "layouts"]
)
def test_a_missing_part_is_one_line(tmp_path: Path, content: dict[str, Any], key: str) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({name: value for name, value in content.items() if name != key}))
    assert mentions(refused(tmp_path), FILE_NAME, "probe")


def test_a_model_with_more_fields_than_are_known_is_read(tmp_path: Path, content: dict[str, Any]) -> None:
    changed = content | {"model": content["model"] | {"num_wings": 2}, "date": "2026-11-15"}
    (tmp_path / FILE_NAME).write_text(json.dumps(changed))
    assert len(read_probes(tmp_path)) == 3


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert "No such file or directory" in refused(tmp_path / "nowhere")
    assert mentions(refused(tmp_path), FILE_NAME)
    os.mkfifo(tmp_path / "pipe")
    assert mentions(refused(tmp_path / "pipe"), tmp_path / "pipe")


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / FILE_NAME).open("w") as file:
        file.write("{}")
        file.truncate(64 * MAX_BYTES)
    assert "64 MiB" in refused(tmp_path)
