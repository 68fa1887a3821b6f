from __future__ import annotations

from pathlib import Path

import pytest

from tests.presets.torchtitan.jobs import OF_PYTHON, bound, of_file
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.shared.training_files import flat
from zenith_tune.presets.torchtitan.command import _name, option_settings, titan_run, with_settings
from zenith_tune.presets.torchtitan.dialect import FIRST, MODULE, TOKENS, TOML, dialect_of

OLD_SCRIPT = """
set -ex
NGPU=${NGPU:-"8"}
CONFIG_FILE=${CONFIG_FILE:-"./small.toml"}
more=""
if [ $# -ne 0 ]; then
    more="$*"
fi
torchrun --nproc_per_node=${NGPU} -m torchtitan.train --job.config_file ${CONFIG_FILE} $more
"""
NEW_SCRIPT = """
NGPU=${NGPU:-"8"}
MODULE=${MODULE:-"llama3"}
CONFIG=${CONFIG:-"llama3_debugmodel"}
if [ -n "$COMM_MODE" ]; then
    python3 -m torchtitan.train --module ${MODULE} --config ${CONFIG} "$@" --comm.mode=${COMM_MODE}
else
    torchrun --nproc_per_node=${NGPU} -m torchtitan.train --module ${MODULE} --config ${CONFIG} "$@"
fi
"""


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file a.toml",
        "python -m torchtitan.train --module llama3 --config llama3_8b",
        "srun torchrun --nnodes 2 --nproc_per_node 8 ./torchtitan/train.py --job.config-file=a.toml",
        "torchrun -m my.own.train --job.config_file a.toml",
        "python3 -m torch.distributed.run --nproc-per-node 2 -m torchtitan.train --job.config_file a.toml",
        "cd titan && PYTHONPATH=. torchrun -m torchtitan.train --module my.jobs --config small",
    ],
)
def test_a_command_that_runs_torchtitan_is_recognised(command: str) -> None:
    assert recognised_preset(command) == "torchtitan"
    run = titan_run(command)
    assert run is not None and run.program.rpartition("/")[2].removesuffix(".py").endswith("train")


@pytest.mark.parametrize("command", ["python train.py --config a", "python -m train --module a --config b"])
def test_other_programs_are_not(command: str) -> None:
    assert titan_run(command) is None


@pytest.mark.parametrize(("text", "variables"), [(OLD_SCRIPT, "CONFIG_FILE"), (NEW_SCRIPT, "CONFIG")])
def test_a_script_is_read_with_the_variables_in_front_of_it(tmp_path: Path, text: str, variables: str) -> None:
    script = tmp_path / "run_train.sh"
    script.write_text(text)
    command = f"NGPU=4 {variables}=mine bash {script} --training.steps 5"
    run = titan_run(command)
    assert run is not None and recognised_preset(command) == "torchtitan"
    found = option_settings(run.arguments)
    assert found["training.steps"] == 5
    assert "mine" in found.values()
    assert with_settings(command, TOML, {"training.steps": 7}).endswith("--training.steps 7")


def test_a_script_that_passes_on_what_it_is_given_needs_no_option_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "run_train.sh").write_text(OLD_SCRIPT)
    (tmp_path / "small.toml").write_text("[training]\nseq_len = 64\n")
    job = bound(f"cd {tmp_path} && bash run_train.sh")._space.job
    assert (job.seq_len, job.num_gpus) == (64, 8)


def test_a_script_that_drops_its_arguments_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc-per-node 8 -m torchtitan.train --module llama3 --config small\n")
    with pytest.raises(UsageError):
        bound(f"bash {script}")


def test_options_are_read_in_every_spelling() -> None:
    words = "--training.seq-len 8 --compile.enable --checkpoint.no-enable --a.b=-1 activation-checkpoint:memory-budget"
    assert option_settings(words.split()) == {
        "training.seq_len": 8,
        "compile.enable": True,
        "checkpoint.enable": False,
        "a.b": -1,
        "activation_checkpoint.mode": "memory_budget",
    }


def test_switches_replace_one_another() -> None:
    on = with_settings("torchrun -m torchtitan.train --compile.no-enable", TOML, {"compile.enable": True})
    assert on == "torchrun -m torchtitan.train --compile.enable"
    off = with_settings(on, TOML, {"compile.enable": False})
    assert option_settings(off.split())["compile.enable"] is False and "--compile.enable" not in off.split()


def test_the_word_for_recomputation_stays_last_with_its_own_options() -> None:
    command = f"{OF_PYTHON} --compile.enable activation-checkpoint:selective --activation-checkpoint.debug > log"
    kept = with_settings(command, MODULE, {"training.steps": 9, "activation_checkpoint.mode": "selective"})
    end = "--compile.enable --training.steps 9 activation-checkpoint:selective --activation-checkpoint.debug > log"
    assert kept.endswith(end)
    other = with_settings(command, MODULE, {"activation_checkpoint.mode": "none", "metrics.log_freq": 1})
    assert other.endswith("--compile.enable --metrics.log_freq 1 activation-checkpoint:none > log")
    assert with_settings(other, MODULE, {"activation_checkpoint.mode": "none", "metrics.log_freq": 1}) == other


@pytest.mark.parametrize(
    ("name", "text", "dialect"),
    [
        ("config_manager.py", "", FIRST),
        ("config/job_config.py", "", TOML),
        ("config/configs.py", "local_batch_size: int = 8", MODULE),
        ("config/configs.py", "num_tokens_per_microbatch_per_dp_rank: int = 16384", TOKENS),
    ],
)
def test_the_dialect_is_that_of_the_tree_that_the_command_runs_in(
    tmp_path: Path, name: str, text: str, dialect: object
) -> None:
    path = tmp_path / "torchtitan" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    run = titan_run(f"cd {tmp_path} && torchrun --nproc-per-node 8 -m torchtitan.train")
    assert run is not None
    assert dialect_of(run, has_file=dialect in (FIRST, TOML)) == dialect


def test_the_kind_of_command_decides_where_no_tree_is_found(tmp_path: Path) -> None:
    assert bound(of_file(tmp_path))._space.job.dialect.has_file
    assert not bound(OF_PYTHON)._space.job.dialect.has_file


def test_a_toml_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        bound(f"torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file {tmp_path}/none.toml")
    with pytest.raises(UsageError):
        bound(of_file(tmp_path, toml="[training"))


def test_an_option_is_named_as_its_setting() -> None:
    assert _name("--training.seq-len") == "training.seq_len"
    assert _name("8") is None


def test_options_set_values_and_switches() -> None:
    assert option_settings(
        ["--training.seq_len=2048", "--compile.enable", "--checkpoint.no-enable", "--module", "llama3"]
    ) == {"training.seq_len": 2048, "compile.enable": True, "checkpoint.enable": False, "module": "llama3"}


def test_tables_are_read_flat() -> None:
    assert flat({"training": {"seq_len": 8}, "dump_folder": "out"}) == {"training.seq_len": 8, "dump_folder": "out"}


def test_the_last_word_of_a_dialect_stays_last() -> None:
    assert (
        with_settings("torchrun -m torchtitan.train activation-checkpoint:full", MODULE, {"training.steps": 9})
        == "torchrun -m torchtitan.train --training.steps 9 activation-checkpoint:full"
    )
