"""What happens to trials when the cluster does not do as it should: nothing is lost, started twice or left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kubernetes.real_cluster import RealCluster
from tests.kubernetes.standin_cluster import StandInCluster
from zenith_kubernetes.job import KubernetesJob
from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.runners.base import End, Job, JobRequest
from zenith_tune.study.resources import Resources

AnyCluster = StandInCluster | RealCluster
COUNT = "for i in $(seq 40); do echo line $i; sleep 0.02; done"
LINES = [f"line {i}" for i in range(1, 41)]


def submitted(
    cluster: StandInCluster | RealCluster, folder: Path, command: str, **given: object
) -> tuple[Job, list[str]]:
    folder.mkdir(exist_ok=True)
    states: list[str] = []
    runner = cluster.runner(**given)
    return runner.submit(f"bash -c '{command}'", folder, Resources(), on_state=states.append), states


def wait_for(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_restarts_costs_no_line_of_the_log(cluster: StandInCluster, tmp_path: Path) -> None:
    job, states = submitted(cluster, tmp_path / "t", COUNT)
    wait_for(lambda: job.log_path.stat().st_size > 50)
    cluster.server.stop()
    wait_for(lambda: any("does not answer" in state for state in states))
    cluster.server.start()
    result = job.wait()
    assert (result.end, result.exit_code, job.log_path.read_text().splitlines()) == (End.EXITED, 0, LINES)
    assert len(cluster.kubelet.started) == 1 and cluster.left() == []


def test_a_followed_log_that_breaks_off_is_taken_up_where_it_was(cluster: StandInCluster, tmp_path: Path) -> None:
    job, _ = submitted(cluster, tmp_path / "t", COUNT)
    for size in (50, 100, 150):
        wait_for(lambda size=size: job.log_path.stat().st_size > size)  # type: ignore[misc]
        cluster.server.cut()
    job.wait()
    assert job.log_path.read_text().splitlines() == LINES


def test_an_answer_that_is_lost_starts_nothing_twice(cluster: StandInCluster, tmp_path: Path) -> None:
    cluster.server.failures = [(0, "POST", True)]
    job, _ = submitted(cluster, tmp_path / "t", "exit 4")
    assert job.wait().exit_code == 4
    assert len(cluster.kubelet.started) == 1 and cluster.left() == []


def test_a_busy_server_is_asked_again(cluster: StandInCluster, tmp_path: Path) -> None:
    calls = ["POST", "GET /apis/trainer", "GET /api/v1", "/log", "DELETE", "DELETE"]
    cluster.server.failures = [(429 if num % 2 else 503, call, False) for num, call in enumerate(calls)]
    job, _ = submitted(cluster, tmp_path / "t", "echo done; exit 4")
    assert job.wait().exit_code == 4 and job.log_path.read_text() == "done\n"
    assert cluster.server.failures == [] and cluster.left() == []


@pytest.mark.parametrize("reason", ["EvictionByEvictionAPI", "PreemptionByScheduler"])
def test_an_evicted_pod_is_a_lost_machine(cluster: StandInCluster, tmp_path: Path, reason: str) -> None:
    job, _ = submitted(cluster, tmp_path / "t", "sleep 60")
    wait_for(lambda: cluster.kubelet.processes)
    cluster.kubelet.disrupt(cluster.kubelet.started[0], reason, "room for another")
    result = job.wait()
    assert (result.end, result.exit_code, result.place) == (End.LOST, None, "n1") and reason in result.reason
    assert cluster.left() == []


def test_a_lost_node_is_a_lost_machine(cluster: StandInCluster, tmp_path: Path) -> None:
    job, _ = submitted(cluster, tmp_path / "t", "sleep 60")
    wait_for(lambda: job.began)
    cluster.kubelet.lose("n1")
    result = job.wait()
    assert (result.end, result.place) == (End.LOST, "n1") and cluster.left() == []


def test_a_trial_that_a_queue_takes_back_is_a_lost_machine(cluster: StandInCluster, tmp_path: Path) -> None:
    job, _ = submitted(cluster, tmp_path / "t", "sleep 60", queue="gpus")
    wait_for(lambda: job.began)
    assert isinstance(job, KubernetesJob)
    cluster.server.patch(("trainjobs", "team-a", job.name), {"spec": {"suspend": True}})
    result = job.wait()
    assert result.end is End.LOST and "Kueue" in result.reason and cluster.left() == []


def test_an_image_that_cannot_be_pulled_is_named_and_stops_the_study(cluster: StandInCluster, tmp_path: Path) -> None:
    job, states = submitted(cluster, tmp_path / "t", "true", image="no/such:image", image_timeout_s=0.3)
    with pytest.raises(SystemFaultError, match="no/such:image"):
        job.wait()
    assert any("ImagePullBackOff" in state for state in states)
    job.cancel()
    assert cluster.left() == []


def test_a_pod_that_cannot_be_scheduled_is_shown_as_waiting(cluster: StandInCluster, tmp_path: Path) -> None:
    job, states = submitted(cluster, tmp_path / "t", "true", gpus_per_node=16)
    wait_for(lambda: any("Insufficient nvidia.com/gpu" in state for state in states))
    assert job.poll() is None
    job.cancel()
    assert cluster.left() == []


@pytest.mark.parametrize("kind", ["trainjobs", "pods"])
def test_a_quota_that_is_used_up_is_waited_for(cluster: StandInCluster, tmp_path: Path, kind: str) -> None:
    cluster.server.quota[kind] = 0
    job, states = submitted(cluster, tmp_path / "t", "exit 4")
    wait_for(lambda: any(state.startswith("pending (quota") for state in states))
    cluster.server.quota.clear()
    assert job.wait().exit_code == 4 and cluster.left() == []


def test_a_queue_is_shown_with_what_it_waits_for(cluster: StandInCluster, tmp_path: Path) -> None:
    job, states = submitted(cluster, tmp_path / "t", "true", queue="gpus")
    assert isinstance(job, KubernetesJob)
    made = cluster.server.patch(("trainjobs", "team-a", job.name), {"spec": {"suspend": True}})
    held = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for nvidia.com/gpu"}
    workload = {"metadata": {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": made["metadata"]["uid"]}}}
    cluster.server.create("", "workloads", "team-a", {**workload, "status": {"conditions": [held]}})
    wait_for(lambda: job.poll() or any("gpus: insufficient quota" in state for state in states))
    job.cancel()
    assert cluster.left() == []


def test_a_trial_that_somebody_deletes_is_revoked(cluster: StandInCluster, tmp_path: Path) -> None:
    job, _ = submitted(cluster, tmp_path / "t", "sleep 60", image="train")
    wait_for(lambda: job.began)
    assert isinstance(job, KubernetesJob)
    cluster.server.delete(("jobs", "team-a", job.name), {})
    assert job.wait().end in (End.REVOKED, End.LOST) and cluster.left() == []


def test_what_a_killed_tuner_left_is_ended_or_read(cluster: StandInCluster, tmp_path: Path) -> None:
    runner, folders = cluster.runner(), [tmp_path / "runs", tmp_path / "done"]
    for folder, command in zip(folders, ["sleep 60", "sh -c 'echo loss 1; exit 3'"], strict=True):
        folder.mkdir()
        made = runner.template.trial(f"zt-{folder.name}", folder, command, Resources())
        cluster.cluster.create(runner.view.jobs_path, made.document)
    wait_for(lambda: len(cluster.kubelet.started) == 2)
    wait_for(lambda: [each for each in cluster.server.all("trainjobs") if each.get("status")])
    (folders[1] / "log.txt").write_text("half of the log")
    assert cluster.runner().recover(folders[0]) is None
    result = cluster.runner().recover(folders[1])
    assert result is not None and result.exit_code == 3
    assert (folders[1] / "log.txt").read_text() == "loss 1\n" and cluster.left() == []


def test_nodes_of_a_trial_know_one_another(cluster: StandInCluster, tmp_path: Path) -> None:
    command = "echo $NODE_RANK of $NNODES at $MASTER_ADDR; [ $NODE_RANK = 0 ] || exit 5; sleep 0.5"
    for given, suffix in (({}, "-node-0-0."), ({"image": "train"}, "-0.")):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / "log.txt").unlink(missing_ok=True)
        job, _ = submitted(cluster, tmp_path / "t", command, nodes=2, gpus_per_node=8, **given)
        result = job.wait()
        assert (result.end, result.exit_code, result.place) == (End.EXITED, 5, "n1,n2")
        assert isinstance(job, KubernetesJob)
        at = f"at {job.name}{suffix}{job.name}"
        assert sorted(job.log_path.read_text().splitlines()) == [f"0 of 2 {at}", f"[n2] 1 of 2 {at}"]
        assert cluster.left() == []


def test_a_trial_brings_its_files(cluster: StandInCluster, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    (folder / "hook").mkdir(parents=True)
    (folder / "hook" / "settings.json").write_text("{}")
    runner = cluster.runner()
    made = runner.template.trial("zt-files", folder, f"cat {folder}/hook/settings.json", Resources())
    (folder / "hook" / "settings.json").unlink()
    cluster.cluster.create(runner.view.jobs_path, made.document)
    job = KubernetesJob(runner, JobRequest(command="", folder=folder, resources=Resources()), made.document)
    assert job.wait().exit_code == 0 and job.log_path.read_text() == "{}"


def test_what_the_cluster_would_refuse_is_refused_before_the_study(cluster: StandInCluster) -> None:
    for given, word in (({"runtime": "none"}, "must be created"), ({"image": "x", "nodes": 1}, "")):
        runner = cluster.runner(**given)
        if word:
            with pytest.raises(UsageError, match=word):
                runner.prepare(Resources())
        else:
            runner.prepare(Resources(gpus_per_node=4), parallel=None)
            assert runner.num_slots == 4
    assert cluster.left() == []


@pytest.mark.slow
@pytest.mark.own_environment
def test_a_real_server_that_restarts_costs_nothing(real_cluster: RealCluster, tmp_path: Path) -> None:
    job, states = submitted(real_cluster, tmp_path / "t", COUNT.replace("0.02", "0.2"))
    wait_for(lambda: job.log_path.stat().st_size > 50)
    real_cluster.stop_server()
    wait_for(lambda: any("does not answer" in state for state in states))
    real_cluster.start_server()
    result = job.wait()
    assert (result.end, result.exit_code, job.log_path.read_text().splitlines()) == (End.EXITED, 0, LINES)
    assert len(set(real_cluster.kubelet.started)) == len(real_cluster.kubelet.started) and real_cluster.left() == []
