"""Finds the program's own arguments behind launchers."""

from __future__ import annotations

import pytest

from zenith_tune.errors import CommandError
from zenith_tune.shell.launchers import Arguments, ShellText, locate, program_name, starts_nothing
from zenith_tune.shell.lexer import Word, lex
from zenith_tune.shell.secrets import find_secrets, mask


def words_of(text: str) -> list[Word]:
    return [token for token in lex(text) if isinstance(token, Word)]


def own_arguments(text: str) -> list[str]:
    words = words_of(text)
    place = locate(words)
    assert isinstance(place, Arguments)
    return [word.value for word in words[place.first :]]


PYTHON = [
    "python train.py",
    "python3.11 -u train.py",
    "/usr/bin/python -X dev -W ignore -Wonce -Xutf8 train.py",
    "python -uBm package.train",
    "python -u -m package.train",
    "python -mpackage.train",
    "python -c 'import sys'",
    "~/env/bin/python train.py",
    "$VENV/bin/python $ROOT/train.py",
    "python $SCRIPT",
    "python $FLAGS train.py",
    "python -m torch.distributed.run --nproc_per_node 8 train.py",
    "python -m torch.distributed.launch --use_env --nproc-per-node=8 train.py",
    "python -m accelerate.commands.launch --num_processes 2 train.py",
    "python -m cProfile -o out.prof train.py",
    "python -m debugpy --listen 5678 --wait-for-client train.py",
]
DISTRIBUTED = [
    "torchrun --standalone --nproc_per_node 8 train.py",
    "torchrun --nnodes=2 --node-rank 0 --master_addr h --master_port 1 -m package.train",
    "torchrun -r 3 -t3 train.py",
    "torchrun --no-python bash train.sh",
    "torchrun --no_python --nproc_per_node 2 ./train",
    "torchrun $DISTRIBUTED_ARGS pretrain_gpt.py",
    "torchrun ${DISTRIBUTED_ARGS[@]} ${ROOT}/pretrain_gpt.py",
    "torchrun --option-from-tomorrow 3 train.py",
    "deepspeed --num_gpus 8 --hostfile hosts train.py",
    "deepspeed -i localhost:0,1 --module package.train",
    "accelerate launch --num_processes 8 --mixed_precision bf16 --multi_gpu train.py",
    "accelerate launch --config-file a.yaml -m package.train",
    "accelerate launch --option_from_tomorrow train.py",
    "accelerate-launch --zero3_init_flag true train.py",
    "accelerate launch --megatron_lm_context_parallel_size 2 --parallelism_config_tp_size 2 train.py",
    "accelerate launch --fsdp_activation_checkpointing_offload true --fp8_pad_inner_dim false -m package.train",
]
CLUSTER = [
    "srun -n 2 -N1 --gpus-per-node=8 -lu python train.py",
    "srun --ntasks 2 --container-image nvcr.io/x:y --label torchrun --nproc-per-node 8 train.py",
    "srun $SLURM_OPTIONS python train.py",
    "srun bash train.sh",
    "sbatch -N 2 --time 10:00 train.sh",
    "mpirun -np 8 -H a,b -x PATH -mca btl ^openib --bind-to none --allow-run-as-root python train.py",
    "mpiexec -n 4 -genv A 1 python train.py",
    "ray job submit --address http://h --working-dir . -- python train.py",
    "horovodrun -np 4 python train.py",
    "docker run --rm --gpus all -v /a:/b image:tag python train.py",
    "kubectl exec pod -- torchrun --nproc_per_node 2 train.py",
    "apptainer exec --nv image.sif python train.py",
]
WRAPPERS = [
    "env -u A B=1 C='x y' python train.py",
    "nohup python train.py",
    "time -p python train.py",
    "nice -n 10 python train.py",
    "nice -10 python train.py",
    "numactl --cpunodebind=0 -m 0 python train.py",
    "taskset -c 0-7 python train.py",
    "timeout -k 5 --signal INT 3600 python train.py",
    "timeout $LIMIT python train.py",
    "flock -n /run/lock/job python train.py",
    "flock -w 5 --verbose $LOCK python train.py",
    "stdbuf -oL python train.py",
    "uv run --with torch --frozen train.py",
    "uv --directory x run -- python train.py",
    "poetry run python train.py",
    "conda run -n env --no-capture-output python train.py",
    "nsys profile -t cuda,nvtx -o out --force-overwrite true python train.py",
    "exec -a name python train.py",
    "nohup nice -n 5 numactl -N 0 env A=1 timeout 9 srun -n 1 torchrun --nproc_per_node 8 train.py",
]
PROGRAMS = ["megatron", "swift", "./train.sh", "./train.py", "my-trainer", "llamafactory-cli"]


@pytest.mark.parametrize("launch", PYTHON + DISTRIBUTED + CLUSTER + WRAPPERS + PROGRAMS)
def test_the_programs_own_arguments_begin_right_after_it(launch: str) -> None:
    own = ["--lr", "1", "data", "--nproc_per_node", "4", "-n", "2", "--config", "x.py"]
    assert own_arguments(" ".join([launch, *own])) == own


@pytest.mark.parametrize("command", ["megatron sft", "swift sft", "swift rlhf"])
def test_subcommands_of_trainers_are_arguments_like_others(command: str) -> None:
    text = f"{command} --custom_register_path my.py --model python"
    assert own_arguments(text) == text.split()[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash -c 'python train.py'", "python train.py"),
        ("sh -lc 'python train.py'", "python train.py"),
        ("bash -euo pipefail -c 'python train.py' name", "python train.py"),
        ("bash --noprofile --rcfile x -c 'python train.py'", "python train.py"),
        ("bash -c -e 'python train.py'", "python train.py"),
        ("env X=1 bash -c 'python train.py'", "python train.py"),
        ("srun -n 2 bash -lc 'python train.py'", "python train.py"),
        ("torchrun --no-python bash -c 'python train.py'", "python train.py"),
        ("docker run image bash -c 'python train.py'", "python train.py"),
        ("flock /run/lock/job bash -c 'python train.py'", "python train.py"),
        ("sbatch -N 2 --wrap='python train.py'", "python train.py"),
        ("sbatch --wrap 'python train.py' -N 2", "python train.py"),
    ],
)
def test_a_shell_text_is_found_behind_its_shell(text: str, expected: str) -> None:
    words = words_of(text)
    place = locate(words)
    assert isinstance(place, ShellText)
    assert words[place.word].value[place.offset :] == expected


@pytest.mark.parametrize("text", ["bash train.sh", "bash -x train.sh", "sh -o pipefail train.sh", "./train.sh"])
def test_a_shell_script_is_known_as_one(text: str) -> None:
    assert locate(words_of(text)) == Arguments(len(text.split()), by_shell=True)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("python", "python"),
        ("python -u", "python"),
        ("python -", "python"),
        ("python -m", "-m"),
        ("bash", "bash"),
        ("bash -s arg", "bash -s"),
        ("bash -", "bash"),
        ("env A=1", "A=1"),
        ("srun -n 2", "2"),
        ("torchrun --nproc_per_node 8", "torchrun"),
        ("torchrun $ARGS", "$ARGS"),
        ("srun --option-from-tomorrow my-trainer", "--option-from-tomorrow"),
        ("$CMD --lr 1", "$CMD"),
        ("$(which python) train.py", "$(which python)"),
        ("eval python train.py", "eval"),
        ("xargs python train.py", "xargs"),
        ("parallel python train.py", "parallel"),
        ("make train", "make"),
        ("ssh host python train.py", "ssh"),
        ("srun make train", "make"),
        ("mpirun -np 1 a : -np 1 b", ":"),
        ("srun uv sync", "srun uv sync"),
        ("flock /run/lock/job -c 'python train.py'", "-c"),
        ("env A=1 HF_TOKEN=s3cr3t", "HF_TOKEN=***"),
        ("$(get --token s3cr3t) --lr 1", "$(get --token ***)"),
        ("$(TOKEN=s3cr3t get) --lr 1", "$(TOKEN=*** get)"),
        ("uv --token s3cr3t sync", "uv --token ***"),
        ("nohup uv https://me:s3cr3t@host", "nohup uv https://me:***@host"),
    ],
)
def test_where_there_is_no_safe_place_one_line_quotes_why_and_offers_placeholders(text: str, part: str) -> None:
    with pytest.raises(CommandError) as caught:
        locate(words_of(text))
    message = mask(str(caught.value), find_secrets(text))  # as the command line shows it
    assert "s3cr3t" not in message
    assert repr(part) in message and "write {tp}, {mbs} ..." in message and "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/usr/bin/python", "python"),
        ("$A/python", "python"),
        ("~/python", "python"),
        ("py$X", None),
        ("$A/$B", None),
        ("$(a/b)", None),
        ("''", None),
    ],
)
def test_a_programs_name_is_known_if_only_its_folder_is_dynamic(text: str, expected: str | None) -> None:
    assert program_name(words_of(text)[0]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uv sync", True),
        ("conda activate x", True),
        ("accelerate config", True),
        ("uv run x", False),
        ("python", False),
    ],
)
def test_a_launcher_called_for_something_else_starts_nothing(text: str, expected: bool) -> None:
    assert starts_nothing(words_of(text)) is expected


def test_a_program_behind_launchers_is_located() -> None:
    tokens = lex("srun -n 2 torchrun --nproc-per-node 8 train.py --lr 1")
    assert locate([token for token in tokens if isinstance(token, Word)]) == Arguments(first=7, by_shell=False)
