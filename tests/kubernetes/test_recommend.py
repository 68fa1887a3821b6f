"""What `zenithtune recommend` makes of a manifest, and `zenithtune plan --emit trainjob` of a plan."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_runs import Done, as_json, running
from tests.mentions import mentions
from zenith_kubernetes.commands import recommend as recommend_command
from zenith_kubernetes.manifest import JobManifest
from zenith_tune.cli.main import cli
from zenith_tune.shell import ParsedCommand

MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --swiglu --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 8192 --disable-bias-linear "
    "--normalization RMSNorm --position-embedding-type rope --bf16 --untie-embeddings-and-output-weights "
    "--global-batch-size 64 --micro-batch-size 1 --use-distributed-optimizer"
)
TRAIN_JOB = f"""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: llama, namespace: team-a}}
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    image: example.org/megatron:1
    command: [torchrun, pretrain_gpt.py, {", ".join(repr(word) for word in MODEL.split())}]
    env: [{{name: TOKEN, valueFrom: {{secretKeyRef: {{name: hub, key: token}}}}}}]
    numNodes: 1
    numProcPerNode: 1
    resourcesPerNode: {{limits: {{nvidia.com/gpu: 1, memory: 64Gi}}, requests: {{cpu: 8, memory: 64Gi}}}}
  podTemplateOverrides:
  - targetJobs: [{{name: node}}]
    spec: {{nodeSelector: {{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}}}
"""
JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: llama}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {{name: proxy, image: example.org/proxy}}
      - name: trainer
        image: example.org/megatron:1
        command: [bash, -c, torchrun pretrain_gpt.py {MODEL} --tensor-model-parallel-size 8]
        resources: {{limits: {{nvidia.com/gpu: 8}}}}
"""


@pytest.fixture
def recommend(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """What runs the command on a manifest."""
    monkeypatch.setitem(cli.commands, "recommend", recommend_command)

    def run(manifest: str, *options: str) -> Done:
        (tmp_path / "job.yaml").write_text(manifest)
        return running("recommend", capsys)("-f", str(tmp_path / "job.yaml"), *options)

    return run


def applied(patch: Any, document: Any) -> Any:
    """Apply a merge patch as RFC 7386 says, and containers by their names, as a strategic one does."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif name == "containers":
            merged[name] = [
                next((applied(each, own) for each in value if each["name"] == own["name"]), own) for own in merged[name]
            ]
        else:
            merged[name] = applied(value, merged.get(name))
    return merged


def test_a_job_that_does_not_fit_gets_the_gpus_and_the_memory_that_it_needs(recommend: Callable[..., Done]) -> None:
    found = as_json(recommend(TRAIN_JOB, "--json"))
    assert (found["nodes"], found["gpus_per_node"], found["gpu"], found["own_step_s"]) == (1, 2, "h100", None)
    assert found["oom_probability"] < 0.3 and found["memory_bytes"] < 80 * 2**30
    trainer = applied(found["patch"], yaml.safe_load(TRAIN_JOB))["spec"]["trainer"]
    before = yaml.safe_load(TRAIN_JOB)["spec"]["trainer"]
    resources = trainer["resourcesPerNode"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], resources["limits"]["nvidia.com/gpu"]) == (1, 2, "2")
    assert resources["limits"]["memory"] == resources["requests"]["memory"] != "64Gi"
    assert resources["requests"]["cpu"] == 8
    assert all(trainer[name] == before[name] for name in ("image", "env"))
    line = ParsedCommand.of(" ".join(trainer["command"]))
    sizes = [line.count(f"--{name}-model-parallel-size") or 1 for name in ("tensor", "pipeline")]
    assert 1 < sizes[0] * sizes[1] <= 2 or line.has("--recompute-granularity")
    assert set(found["patch"]["spec"]) == {"trainer"}, "the rest is the user's"


def test_the_patch_of_a_job_names_its_container_and_what_is_printed_is_applied_to(
    recommend: Callable[..., Done],
) -> None:
    options = ("--gpu", "h100", "--container", "trainer")
    patch = recommend(JOB, *options)
    assert patch.code == 0 and "--type strategic" in patch.err, patch.err
    manifest = recommend(JOB, *options, "--output", "manifest")
    after = yaml.safe_load(manifest.out)
    assert applied(yaml.safe_load(patch.out), yaml.safe_load(JOB)) == after
    proxy, trainer = after["spec"]["template"]["spec"]["containers"]
    assert proxy == {"name": "proxy", "image": "example.org/proxy"} and trainer["command"][0] == "torchrun"
    assert trainer["resources"]["requests"]["memory"].endswith("Gi")
    assert mentions(patch.err, "1 node", "8 x h100") and "(now " in patch.err


@pytest.mark.parametrize(
    ("change", "options", "parts"),
    [
        (("nvidia.com/gpu.product", "gpu"), (), ("nvidia.com/gpu.product", "--gpu")),
        (("H100-80GB", "H100-80GB"), ("--gpus", "1"), ("1 x h100", "--gpus")),
        (("H100-80GB", "H100-80GB"), ("--gpu", "h10"), ("h10", "h100")),
        (("pretrain_gpt.py", "train.py"), (), ("preset trainer",)),
        (("torchrun, ", "torchrun, --nproc-per-node, '4', "), ("--gpus", "8"), ("4", "8")),
        (("    command:", "    other:"), (), ("TrainJob llama", "command")),
        (("memory: 64Gi}, req", "memory: lots}, req"), (), ("'lots'",)),
    ],
)
def test_what_cannot_be_recommended_is_one_line(
    recommend: Callable[..., Done], change: tuple[str, str], options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    done = recommend(TRAIN_JOB.replace(*change), *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert all(part in done.err for part in parts), done.err


def test_a_plan_is_written_as_a_train_job_that_runs_its_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = (
        "--model",
        "llama3-8b",
        "--cluster",
        "h100x16",
        "--gbs",
        "64",
        "--seq",
        "8192",
        "--output",
        str(tmp_path),
    )
    done = running("plan", capsys)(*arguments, "--emit", "trainjob")
    assert done.code == 0, done.err
    job = JobManifest.read(tmp_path / "trainjob.yaml")
    assert (job.kind, job.nodes, job.gpus_per_node, job.name) == ("TrainJob", 2, 8, "llama3-8b-h100x16")
    script = tmp_path / "run.sh"
    script.write_text(job.command or "")
    stand_in = tmp_path / "torchrun"
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o700)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PET_MASTER_ADDR": "node-0.llama"}
    ran = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    words = ran.stdout.split()
    assert words[words.index("--nnodes") + 1] == "2" and "node-0.llama:29500" in words
    assert {"pretrain_gpt.py", "--num-layers", "--mock-data", "--use-distributed-optimizer"} <= set(words)


def test_what_a_plan_was_written_as_is_read_again_and_still_meets_where_the_runtime_says(
    capsys: pytest.CaptureFixture[str], recommend: Callable[..., Done], tmp_path: Path
) -> None:
    arguments = ("--model", "llama3-8b", "--cluster", "h100x16", "--gbs", "64", "--seq", "4096")
    assert running("plan", capsys)(*arguments, "--emit", "trainjob", "--output", str(tmp_path)).code == 0
    found = as_json(recommend((tmp_path / "trainjob.yaml").read_text(), "--gpu", "h100", "--json"))
    assert found["nodes"] * found["gpus_per_node"] == 16 and found["step_s"] > 0
    assert "$MASTER_ADDR:" in found["command"] and "eval " not in found["command"]
    script, stand_in = tmp_path / "run.sh", tmp_path / "torchrun"
    script.write_text(found["command"])
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o700)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PET_MASTER_ADDR": "node-0.llama"}
    ran = subprocess.run(["bash", script], env=env, capture_output=True, text=True, check=True)
    assert "node-0.llama:29500" in ran.stdout and "--mock-data" in ran.stdout
