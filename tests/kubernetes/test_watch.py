"""Jobs that ask to be tuned: held, tuned within their budget, released once; never lost or started twice."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.kubernetes.real_cluster import RealCluster
from tests.kubernetes.standin_cluster import NAMESPACE, StandInCluster
from zenith_kubernetes.api import ApiError, Cluster
from zenith_kubernetes.held_job import REASON, STATE
from zenith_kubernetes.manifest import JobManifest
from zenith_kubernetes.watch import JobWatch
from zenith_tune.study.resources import Resources

TRAIN = "import sys, time; d = float(sys.argv[-1]); time.sleep(d); print('time:', d)"
OPTIMIZE = "space=delay=0.4\\,0.01,objective=time: ([0-9.]+),n-trials=2"
Json = dict[str, Any]


def submit(
    cluster: StandInCluster | RealCluster, name: str, annotation: str, *, kind: str = "trainjobs", **spec: object
) -> None:
    plain = JobManifest.train_job(name=name) if kind == "trainjobs" else JobManifest.job(name=name, image="train")
    made = plain.with_argv([sys.executable, "-c", TRAIN, "--delay", "0.4"]).suspended(True)
    made = made.labelled({"team": "a"}, {"zenithtune/optimize": annotation})
    cluster.cluster.create(cluster.cluster.job_path(made), made.document)


def shown(cluster: StandInCluster, name: str) -> Json | None:
    found = [each for kind in ("trainjobs", "jobs") for each in cluster.server.all(kind)]
    return next((each for each in found if each["metadata"]["name"] == name), None)


def state(cluster: StandInCluster, name: str) -> str:
    found = shown(cluster, name)
    return str((found["metadata"].get("annotations") or {}).get(STATE, "")) if found else "gone"


def starts(cluster: StandInCluster | RealCluster, name: str) -> int:
    return sum(each.startswith(f"{name}-") for each in cluster.kubelet.started)


def watch(cluster: StandInCluster | RealCluster, folder: Path, **given: Any) -> JobWatch:
    args = {"kubeconfig": str(cluster.kubeconfig), "poll_s": "0.1"}
    return JobWatch(cluster.cluster, output_dir=folder / "out", runner_args=args, say=lambda line: None, **given)


def wait_for(condition: Callable[[], object], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def look_until(watched: JobWatch, condition: Callable[[], object]) -> None:
    def looked() -> object:
        watched._safely(watched.look)
        return condition()

    wait_for(looked)


@pytest.mark.parametrize(
    ("annotation", "word"),
    [
        ("preset=./mine.py:Preset", "must be a name"),
        ("output-dir=/etc", "takes no option"),
        ("rubbish", "k=v"),
    ],
)
def test_an_annotation_that_cannot_be_met_leaves_the_job_as_it_is(
    cluster: StandInCluster, tmp_path: Path, annotation: str, word: str
) -> None:
    submit(cluster, "llama", annotation)
    watch(cluster, tmp_path).look()
    found = shown(cluster, "llama")
    assert found is not None and found["spec"]["suspend"] is False
    assert state(cluster, "llama") == "unchanged" and word in found["metadata"]["annotations"][REASON]
    wait_for(lambda: starts(cluster, "llama") == 1)
    assert [each["reason"] for each in cluster.server.all("events")] == ["LeftUnchanged"]


def test_a_job_that_runs_already_is_let_run(cluster: StandInCluster, tmp_path: Path) -> None:
    submit(cluster, "llama", OPTIMIZE)
    made = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"suspend": False}}
    cluster.server.patch(("trainjobs", NAMESPACE, "llama"), made)
    watch(cluster, tmp_path).look()
    found = shown(cluster, "llama")
    assert state(cluster, "llama") == "unchanged" and found is not None and found["spec"]["suspend"] is False


def test_of_two_watchers_one_works(cluster: StandInCluster, tmp_path: Path) -> None:
    submit(cluster, "llama", "rubbish")
    lines: list[str] = []
    first = watch(cluster, tmp_path)
    first._lease.is_ours()
    second = JobWatch(cluster.cluster, output_dir=tmp_path / "out", say=lines.append)
    second.look()
    assert state(cluster, "llama") == "" and "another watcher" in lines[0]
    first._lease.give_back()
    second.look()
    assert state(cluster, "llama") == "unchanged"


OF_NAMESPACE = f"/namespaces/{NAMESPACE}"


@pytest.mark.parametrize(
    "fails_at",
    [
        f"POST /api/v1{OF_NAMESPACE}/configmaps",
        f"DELETE /apis/trainer.kubeflow.org/v1alpha1{OF_NAMESPACE}/trainjobs/llama",
        f"POST /apis/trainer.kubeflow.org/v1alpha1{OF_NAMESPACE}/trainjobs",
        f"DELETE /api/v1{OF_NAMESPACE}/configmaps",
        f"PATCH /apis/trainer.kubeflow.org/v1alpha1{OF_NAMESPACE}/trainjobs/llama",
    ],
)
def test_a_watcher_that_dies_while_it_replaces_a_job_neither_loses_nor_repeats_it(
    cluster: StandInCluster, tmp_path: Path, fails_at: str
) -> None:
    """Each call of a release in turn is the last one of a watcher, whose answer it does not see."""
    submit(cluster, "llama", OPTIMIZE)
    watched = watch(cluster, tmp_path)
    watched.look()
    job = next(iter(watched._jobs()))
    study = watched._study(job)
    study.path.mkdir(parents=True)
    study.json.write_text('{"best_command": "python -c pass --delay 0.01", "gain": 2.0}')
    cluster.server.failures = [(0, fails_at, True)]
    watched._safely(lambda: watched._finish(job))
    watched._lease.give_back()
    other = watch(cluster, tmp_path)
    look_until(other, lambda: state(cluster, "llama") == "released")
    for _ in range(3):
        other.look()
    wait_for(lambda: starts(cluster, "llama") == 1)
    found = shown(cluster, "llama")
    assert found is not None and found["spec"]["trainer"]["command"] == ["python", "-c", "pass", "--delay", "0.01"]
    assert found["metadata"]["labels"] == {"team": "a"} and cluster.server.all("configmaps") == []


@pytest.mark.slow
def test_jobs_are_tuned_on_arrival_and_released_with_a_better_command(cluster: StandInCluster, tmp_path: Path) -> None:
    submit(cluster, "llama", OPTIMIZE)
    submit(cluster, "qwen", OPTIMIZE, kind="jobs")
    submit(cluster, "broken", "space=other=1\\,2,objective=never (x),n-trials=2")
    watched = watch(cluster, tmp_path, at_most=2)
    names = ("llama", "qwen", "broken")
    look_until(watched, lambda: all(state(cluster, name) in ("released", "unchanged") for name in names))
    assert [state(cluster, name) for name in names] == ["released", "released", "unchanged"]
    found = shown(cluster, "llama")
    assert found is not None and found["spec"]["trainer"]["command"][-1] == "0.01"
    assert "as fast" in found["metadata"]["annotations"][REASON]
    wait_for(lambda: [starts(cluster, name) for name in names] == [1, 1, 1])
    wait_for(lambda: not [name for name in cluster.left() if name.startswith("zt-")])


@pytest.mark.slow
def test_a_watcher_that_is_killed_leaves_nothing_undone(cluster: StandInCluster, tmp_path: Path) -> None:
    submit(cluster, "llama", OPTIMIZE)
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "watch", "--kubeconfig", str(cluster.kubeconfig)]
    argv += ["--output-dir", str(tmp_path / "out")]
    killed = subprocess.Popen(argv)
    wait_for(lambda: [name for name in cluster.kubelet.started if name.startswith("zt-")])
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    cluster.server.patch(("leases", NAMESPACE, "zenithtune-watch"), {"spec": {"holderIdentity": ""}})
    again = subprocess.Popen(argv)
    wait_for(lambda: state(cluster, "llama") == "released")
    again.terminate()
    assert again.wait() == 0
    wait_for(lambda: starts(cluster, "llama") == 1)
    assert not [name for name in cluster.left() if name.startswith("zt-")]


@pytest.mark.slow
@pytest.mark.own_environment
def test_a_real_server_takes_all_that_a_watcher_sends(real_cluster: RealCluster, tmp_path: Path) -> None:
    submit(real_cluster, "llama", OPTIMIZE)
    submit(real_cluster, "qwen", OPTIMIZE, kind="jobs")
    submit(real_cluster, "broken", "rubbish")
    watched = watch(real_cluster, tmp_path, at_most=2)
    api = real_cluster.cluster
    paths = [
        api.job_path(kind, name) for kind, name in (("TrainJob", "llama"), ("Job", "qwen"), ("TrainJob", "broken"))
    ]

    def states() -> list[str | None]:
        return [JobManifest.of(api.get(path)).annotations.get(STATE) for path in paths]

    def is_done() -> bool:
        with contextlib.suppress(ApiError):  # one is being replaced
            return states() == ["released", "released", "unchanged"]
        return False

    look_until(watched, is_done)
    wait_for(lambda: [starts(real_cluster, name) for name in ("llama", "qwen", "broken")] == [1, 1, 1])
    assert [JobManifest.of(api.get(path)).command for path in paths[:2]] == 2 * [
        " ".join([sys.executable, "-c", shlex.quote(TRAIN), "--delay", "0.01"])
    ]
    events = [each for each in api.items(api.path("events")) if each["source"].get("component") == "zenithtune"]
    assert sorted(each["reason"] for each in events) == ["LeftUnchanged", "Tuned", "Tuned"]
    assert not [name for name in real_cluster.left() if name.startswith("zt-")]
    watched._lease.give_back()
    for path in paths:
        api.delete(path, {"propagationPolicy": "Background"})
    wait_for(lambda: real_cluster.left() == [])


@pytest.mark.slow
def test_a_study_whose_tuner_is_killed_continues_and_leaves_nothing(cluster: StandInCluster, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "zenith_tune.cli.main",
        "optimize",
        "--output-dir",
        str(tmp_path),
        "--study-name",
        "s",
    ]
    argv += ["--study-name", "s", "--space", "delay=0.4,0.3,0.01", "--objective", "time: ([0-9.]+)", "--n-trials", "3"]
    argv += ["--kubernetes", f"image=train,poll_s=0.1,kubeconfig={cluster.kubeconfig}"]
    command = ["--", "python", "-c", TRAIN.replace("sleep(d)", "sleep(4 * d)"), "--delay", "0.4"]
    killed = subprocess.Popen([*argv, *command])
    wait_for(lambda: len(cluster.kubelet.started) == 2)
    killed.kill()
    killed.wait()
    done = subprocess.run([*argv, "--resume", *command], capture_output=True, text=True, check=True)
    assert "0.01" in (tmp_path / "s" / "best_command.sh").read_text(), done.stdout
    assert cluster.left() == []


@pytest.mark.slow
@pytest.mark.own_environment
def test_the_role_of_the_docs_is_enough(real_cluster: RealCluster, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    role = next(each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "kind: Role" in each)
    kubeconfig = real_cluster.as_tuner(yaml.safe_load(role)["rules"])
    for given in ({}, {"image": "train", "nodes": 2}):
        runner = real_cluster.runner(kubeconfig=str(kubeconfig), **given)
        runner.prepare(Resources())
        folder = tmp_path / str(len(given))
        folder.mkdir()
        assert runner.submit("sh -c 'exit 3; echo $NODE_RANK'", folder, Resources()).wait().exit_code == 3
        assert runner.recover(folder) is not None
    submit(real_cluster, "role", "rubbish")
    lines: list[str] = []
    watched = JobWatch(Cluster(kubeconfig=str(kubeconfig)), output_dir=tmp_path, say=lines.append)
    watched.look()
    watched._lease.give_back()
    assert len(lines) == 1 and "left unchanged" in lines[0]
    real_cluster.cluster.delete(real_cluster.cluster.job_path("TrainJob", "role"), {"propagationPolicy": "Background"})
    wait_for(lambda: real_cluster.left() == [])
