from __future__ import annotations

from pathlib import Path

import pytest

from tests.calibration.probe.rank_script import SHAPE, training, write_script
from zenith_calibration.probe.fake_rank import fake_rank
from zenith_calibration.probe.probe_job import ProbeJob, plain_word
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.job import MegatronLmOverrides
from zenith_tune.shell import ParsedCommand


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_script(tmp_path)


def job_of(*options: str, n_gpus: int | None = None, **variables: str) -> ProbeJob:
    command = ParsedCommand.from_argv(training(*options, **variables)).text
    return ProbeJob.of(command, MegatronLmOverrides(n_gpus=n_gpus))


def written(job: ProbeJob, layout: str) -> str:
    """Return the options of a layout as one text."""
    return " ".join(job.run_of(job.named(layout)).arguments)


def test_the_cluster_may_be_larger_than_what_the_command_starts() -> None:
    assert job_of().job.start.num_gpus == 8
    assert job_of(n_gpus=64).job.start.num_gpus == 64
    assert job_of(n_gpus=64, WORLD_SIZE="8").job.start.num_gpus == 64


def test_a_layout_is_the_commands_own_with_the_named_sizes() -> None:
    job = job_of("--tensor-model-parallel-size", "2", "--sequence-parallel", "--recompute-activations")
    assert (job.named("PP2").tp, job.named("PP2").pp, job.named("PP2").sequence_parallel) == (2, 2, True)
    assert job.named("TP1").sequence_parallel is False
    assert (job.named("TP4 mbs2").micro_batch, job.named("TP4").dp) == (2, 2)
    assert (job.named("full/uniform1").recompute, job.named("none").recompute) == ("full/uniform", "none")


def test_the_options_of_a_layout_are_put_into_the_run() -> None:
    options = written(job_of(), "TP2 PP2 mbs2 full/uniform1")
    for part in ("--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", "--micro-batch-size 2"):
        assert part in options
    assert "--recompute-granularity full" in options and "--sequence-parallel" in options
    assert options.count("--micro-batch-size") == 1


def test_sequence_parallelism_of_the_command_is_kept_when_a_layout_raises_tp_from_1() -> None:
    local = ("--transformer-impl", "local", "--no-persist-layer-norm")
    assert "--sequence-parallel" in written(job_of(*local, "--sequence-parallel"), "TP4 PP2")
    assert "--sequence-parallel" not in written(job_of(*local), "TP4 PP2")


def test_experts_are_probed_with_balanced_routing_unless_somebody_says_otherwise() -> None:
    experts = ("--num-experts", "8", "--moe-token-dispatcher-type", "alltoall", "--disable-bias-linear")
    command = ParsedCommand.from_argv(training(*experts)).text
    assert "--moe-router-force-load-balancing" in written(job_of(*experts), "TP2")
    as_is = ProbeJob.of(command, MegatronLmOverrides(routing="as-is"))
    assert "--moe-router-force-load-balancing" not in written(as_is, "TP2")
    assert "--moe-router-force-load-balancing" not in written(job_of(), "TP2")


@pytest.mark.parametrize("text", ["TP2 DP2", "tp=4,dp=8"])
def test_data_parallelism_follows_from_the_rest(text: str) -> None:
    with pytest.raises(UsageError, match=r"8 GPUs .*is [24], .*DP[28]") as caught:
        job_of().named(text)
    assert "DP" in caught.value.hint
    assert job_of().named("TP2 DP4").dp == 4


def test_a_script_that_changes_its_folder_is_followed(tmp_path: Path, script: Path) -> None:
    (tmp_path / "my tree").mkdir()
    script.rename(tmp_path / "my tree" / script.name)
    text = f"cd 'my tree'\nexport NCCL_DEBUG=INFO\ntorchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE}\n"
    (tmp_path / "train.sh").write_text(text)
    job = ProbeJob.of("bash train.sh", MegatronLmOverrides())
    command = fake_rank(job.run_of(job.named("TP2")), job.named("TP2"), 0, tmp_path / "r").command
    assert command.startswith("cd 'my tree' && ") and "NCCL_DEBUG=INFO" in command


def test_all_layouts_of_the_plan_hold_the_rules_and_differ() -> None:
    layouts = list(job_of().layouts())
    assert len(layouts) > 20
    assert {layout.num_gpus for layout in layouts} == {8} and {layout.tp for layout in layouts} == {1, 2, 4, 8}
    assert all(layout.global_batch % (layout.dp * layout.micro_batch) == 0 for layout in layouts)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("true", ["pretrain_*.py"]),
        (f"torchrun pretrain_gpt.py {SHAPE}", ["--gpus 8"]),
        (f"torchrun --nproc-per-node 8 pretrain_bert.py {SHAPE}", ["decoder-only", "pretrain_bert.py"]),
        ("torchrun --nproc-per-node 8 pretrain_gpt.py --bf16", ["--model"]),
        (
            f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} --moe-token-dispatcher-type flex",
            ["--moe-token-dispatcher-type flex", "alltoall"],
        ),
        (f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} --use-megatron-fsdp", ["--use-megatron-fsdp"]),
    ],
)
def test_what_cannot_be_probed_is_refused_in_one_line(command: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        ProbeJob.of(command, MegatronLmOverrides())
    text = str(refused.value)
    assert "\n" not in text and all(part in text for part in parts)


def test_a_cluster_that_is_too_small_is_refused_with_one_that_is_large_enough() -> None:
    with pytest.raises(UsageError, match="--cluster h200x64"):
        job_of(n_gpus=64).subject("h200x8")
    assert job_of(n_gpus=4).subject("h200x8").cluster.num_gpus == 4


def test_the_folder_of_a_script_is_put_in_and_what_only_a_shell_knows_is_refused(tmp_path: Path, script: Path) -> None:
    options = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    batch = "--micro-batch-size 1 --global-batch-size 8 --vocab-size 1024 --tokenizer-type NullTokenizer"
    head = 'HERE=$(cd "$(dirname "$0")" && pwd)\nexport PYTHONPATH=$HERE/tree NAME=$(date)\n'
    train = f"torchrun --nproc-per-node 2 {script} {options} {batch} --data-path "
    (tmp_path / "train.sh").write_text(f"{head}{train}$HERE/data\n")
    job = ProbeJob.of(f"bash {tmp_path}/train.sh", MegatronLmOverrides())
    assert f"PYTHONPATH={tmp_path}/tree" in job.command and f"--data-path {tmp_path}/data" in job.command
    assert "$(" not in job.command and "NAME" not in job.command
    (tmp_path / "train.sh").write_text(f"{head}{train}$(date)\n")
    with pytest.raises(UsageError, match=r"'\$\(date\)'"):
        ProbeJob.of(f"bash {tmp_path}/train.sh", MegatronLmOverrides())


def test_a_word_has_the_folder_of_its_script_put_in() -> None:
    assert (
        plain_word('$(cd "$(dirname "$0")" && pwd)/data', script="jobs/train.sh", folder=Path("/home/me"))
        == "/home/me/jobs/data"
    )
    assert plain_word("out-$(date +%F)", script="train.sh", folder=Path("/home/me")) is None
