"""The examples of command."""

from __future__ import annotations

from zenith_tune.presets.megatron.command import find_pretrain_run, without_layout


def test_a_run_of_megatron_is_found_with_its_variables() -> None:
    run = find_pretrain_run("TP=2; torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP")
    assert run is not None
    assert run.launcher[-1] == "8"
    assert run.arguments == ("--tensor-model-parallel-size", "2")


def test_a_script_of_ours_is_left_without_its_layout() -> None:
    assert without_layout("bash run.sh") == "LAYOUT= bash run.sh"
