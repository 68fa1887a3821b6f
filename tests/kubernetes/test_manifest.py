"""Holds manifests to what users write, and what is made of them to what they asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from zenith_kubernetes.manifest import JobManifest, is_training_job
from zenith_tune.errors import UsageError

TRAIN_JOB = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: llama
  namespace: team-a
  labels: {kueue.x-k8s.io/queue-name: gpus}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", owner: ann}
  uid: 7f
spec:
  runtimeRef: {name: torch-distributed}
  suspend: true
  trainer:
    image: example.org/train:1
    command: [torchrun, --nnodes=$(PET_NNODES), train.py, --name=a b, --ratio=$$1]
    env:
    - {name: PET_NNODES, value: "2"}
    - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}
    numNodes: 2
    resourcesPerNode: {limits: {nvidia.com/gpu: 8, memory: 1Ti}, requests: {nvidia.com/gpu: 8}}
status: {conditions: []}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {generateName: train-}
spec:
  parallelism: 2
  template:
    spec:
      containers:
      - {name: proxy, image: proxy}
      - name: trainer
        image: train
        command: [/bin/bash, -ec]
        args: ["cd /work\\n python train.py --run $(RUN) --pid $$$$ --when $(date)"]
        env: [{name: RUN, value: r1}]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


@pytest.fixture
def train_job(tmp_path: Path) -> JobManifest:
    (tmp_path / "job.yaml").write_text(TRAIN_JOB)
    return JobManifest.read(tmp_path / "job.yaml")


@pytest.fixture
def job(tmp_path: Path) -> JobManifest:
    (tmp_path / "job.yaml").write_text(JOB)
    return JobManifest.read(tmp_path / "job.yaml", container="trainer")


def test_the_training_job_is_found_among_other_objects(train_job: JobManifest) -> None:
    assert (train_job.kind, train_job.name, train_job.namespace, train_job.queue) == (
        "TrainJob",
        "llama",
        "team-a",
        "gpus",
    )
    assert (train_job.nodes, train_job.gpus_per_node, train_job.runtime) == (2, 8, "torch-distributed")
    assert train_job.image == "example.org/train:1" and train_job.is_suspended
    assert train_job.environment == {"PET_NNODES": "2"}


def test_what_only_the_server_writes_is_left_out(train_job: JobManifest) -> None:
    assert "status" not in train_job.document and "uid" not in train_job.document["metadata"]
    assert train_job.annotations == {"owner": "ann"}


def test_a_command_of_words_is_one_line_of_a_shell(train_job: JobManifest) -> None:
    assert train_job.command == "torchrun \"--nnodes=${PET_NNODES}\" train.py '--name=a b' '--ratio=$1'"


def test_the_script_of_a_shell_is_the_command(job: JobManifest) -> None:
    assert job.command == "cd /work\n python train.py --run ${RUN} --pid $$ --when $(date)"


def test_a_runtime_without_a_command_of_the_job_says_nothing() -> None:
    assert JobManifest.train_job(name="x").command is None


def test_a_new_command_is_what_the_process_gets(train_job: JobManifest, job: JobManifest) -> None:
    for each in (train_job, job):
        text = "python train.py --pid $$ --when $(date) --run ${RUN}"
        assert each.with_command(text).command == text
    assert train_job.with_command("torchrun train.py --mbs 4").document["spec"]["trainer"]["command"] == [
        *("torchrun", "train.py", "--mbs", "4")
    ]
    script = job.with_command("a; b").document["spec"]["template"]["spec"]["containers"][1]["command"]
    assert script == ["/bin/bash", "-ec", "a; b"]


def test_a_change_leaves_all_else_as_it_is(train_job: JobManifest, job: JobManifest) -> None:
    before = train_job.as_yaml()
    changed = train_job.sized(4, 4).with_environment({"PET_NNODES": "4", "A": "$x"}).renamed("new", "other")
    assert train_job.as_yaml() == before
    trainer = changed.document["spec"]["trainer"]
    assert trainer["resourcesPerNode"] == {
        "limits": {"nvidia.com/gpu": "4", "memory": "1Ti"},
        "requests": {"nvidia.com/gpu": "4"},
    }
    assert [each["name"] for each in trainer["env"]] == ["HF_TOKEN", "PET_NNODES", "A"]
    assert changed.environment == {"PET_NNODES": "4", "A": "$x"}
    assert (changed.nodes, changed.name, changed.namespace) == (4, "new", "other")
    sized = job.sized(3, 1).document["spec"]
    assert (sized["completions"], sized["parallelism"], sized["completionMode"]) == (3, 3, "Indexed")
    containers = sized["template"]["spec"]["containers"]
    assert "resources" not in containers[0]
    assert containers[1]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert containers[1]["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["one TrainJob", "no object"]),
        ("kind: Pod\nspec: {}", ["one TrainJob", "Pod"]),
        (TRAIN_JOB + "---" + TRAIN_JOB, ["one TrainJob", "TrainJob, ConfigMap, TrainJob"]),
        ("{", ["no YAML"]),
        ("a: &a [*a]", ["one TrainJob"]),
        ("apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: []}}}", ["containers"]),
        ("apiVersion: batch/v1\nkind: Job\nmetadata: 3\nspec: {}", ["containers"]),
        ("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec: {trainer: 3}", ["spec.trainer"]),
    ],
)
def test_what_is_no_training_job_is_refused_in_words(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        JobManifest.read(tmp_path / "x.yaml")
    assert mentions(caught.value, *words)


def test_a_kind_of_another_group_is_no_training_job() -> None:
    assert not is_training_job({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}})
    assert is_training_job({"apiVersion": "trainer.kubeflow.org/v1", "kind": "TrainJob", "spec": {}})


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"command": [1, None, {"a": "b"}]}, "command must be a list of words"),
        ({"command": "torchrun train.py"}, "command must be a list of words"),
        ({"numNodes": "x"}, "number of nodes must be a whole number above 0, but is 'x'"),
        ({"numNodes": -1}, "number of nodes must be a whole number above 0, but is -1"),
    ],
)
def test_a_shape_that_no_server_takes_is_one_line(trainer: dict[str, object], said: str) -> None:
    document = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}}
    with pytest.raises(UsageError, match=said):
        JobManifest.of({**document, "spec": {"trainer": trainer}})
