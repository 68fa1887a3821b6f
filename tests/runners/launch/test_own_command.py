from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.runners.launch.own_command import check_script, own_command, own_variables, replaced_settings


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 2 t.py", "torchrun --master-port 7 --nproc-per-node 2 t.py"),
        ("torchrun --master_port=1 t.py", "torchrun --master-port 7 t.py"),
        ("torchrun --standalone t.py", "torchrun --standalone t.py"),
        (
            "torchrun --nnodes 1:4 --rdzv_backend c10d --rdzv-endpoint=localhost:1 --rdzv-id 5 t.py",
            "torchrun --nnodes 1 --master-port 7 t.py",
        ),
        ("torchrun --rdzv-backend=c10d t.py", "torchrun --nnodes 1 --master-port 7 t.py"),
        (
            "deepspeed --num_gpus 2 t.py --num_gpus 9",
            "deepspeed --master_port 7 --include localhost:2,3 t.py --num_gpus 9",
        ),
        (
            "deepspeed -H hosts --num_nodes=1 -i localhost:0,1 --force_multi --launcher slurm --module t",
            "deepspeed --master_port 7 --include localhost:2,3 --module t",
        ),
        ("deepspeed --exclude localhost:2,3 t.py", "deepspeed --master_port 7 --include localhost:2,3 t.py"),
        (
            "accelerate launch --gpu_ids 0,1 --main-process-port=1 --rdzv_backend c10d t.py",
            "accelerate launch --gpu_ids all --main_process_port 7 t.py",
        ),
        (
            "accelerate launch --config_file a.yaml t.py",
            "accelerate launch --gpu_ids all --main_process_port 7 --config_file a.yaml t.py",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 MASTER_PORT=5 bash -c 'export MASTER_PORT=6; deepspeed t.py'",
            "CUDA_VISIBLE_DEVICES=2,3 MASTER_PORT=7 bash -c "
            "'export MASTER_PORT=7; deepspeed --master_port 7 --include localhost:2,3 t.py'",
        ),
        ("bash train.sh", "bash train.sh"),
    ],
)
def test_a_launcher_keeps_to_the_trials_gpus_and_port(command: str, expected: str) -> None:
    assert own_command(command, gpus="2,3", port="7") == expected


@pytest.mark.parametrize(
    "command", ["deepspeed --num_gpus 2 t.py", "accelerate launch --gpu_ids 0 t.py", "A=1 python t.py"]
)
def test_with_nothing_of_its_own_a_command_is_left_as_it_is(command: str) -> None:
    assert own_command(command) == command


def test_without_gpus_deepspeed_and_accelerate_find_theirs_themselves() -> None:
    assert own_command("deepspeed --num_gpus 2 t.py", port="7") == "deepspeed --master_port 7 --num_gpus 2 t.py"
    assert own_command("CUDA_VISIBLE_DEVICES=0 accelerate launch --gpu_ids 0 t.py", port="7") == (
        "CUDA_VISIBLE_DEVICES=0 accelerate launch --main_process_port 7 --gpu_ids 0 t.py"
    )


def test_deepspeed_is_not_given_gpus_by_names_that_it_cannot_read() -> None:
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES.*GPU-8a"):
        own_command("deepspeed t.py", gpus="GPU-8a,GPU-9b", port="7")


def test_what_is_replaced_is_named_in_a_line_each() -> None:
    lines = replaced_settings("CUDA_VISIBLE_DEVICES=0,1 env MASTER_PORT=5 python t.py", own_variables(has_gpus=True))
    assert [line.split()[0] for line in lines] == ["CUDA_VISIBLE_DEVICES=0,1", "MASTER_PORT=5"]
    assert replaced_settings("CUDA_VISIBLE_DEVICES=0 python t.py", own_variables(has_gpus=False)) == []


def test_a_script_that_names_its_gpus_is_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "t.sh"
    script.write_text("export CUDA_VISIBLE_DEVICES=0,1\npython t.py\n")
    with pytest.raises(UsageError) as refused:
        check_script(f"bash {script}", own_variables(has_gpus=True))
    assert str(script) in refused.value.problem and "export CUDA_VISIBLE_DEVICES=0,1" in refused.value.problem
    assert refused.value.hint and "\n" not in str(refused.value)
    check_script(f"bash {script}", own_variables(has_gpus=False))


def test_a_command_gets_its_gpus_and_port() -> None:
    assert (
        own_command("deepspeed --num_gpus 2 --master_port 29500 train.py", gpus="2,3", port="41234")
        == "deepspeed --master_port 41234 --include localhost:2,3 train.py"
    )
