from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.presets.trainer.runs import OPTIONS, bound, run
from zenith_tune.presets.levers import LeverPoint
from zenith_tune.presets.trainer.levers import LEVERS
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params

POINT: Params = {"mbs": 4, "checkpointing": False}
OFF = {name: None for lever in LEVERS for name in lever.sets} | {
    "optim": "adamw_torch_fused",
    "use_liger_kernel": False,
    "torch_compile": False,
    "dataloader_num_workers": 0,
    "bf16": True,
}
ALLOCATOR, MODE = "allocator=expandable", "compile_mode=reduce-overhead"
ALL = ["flash_attn", "liger_kernel"]


def offered(command: str = OPTIONS, arguments: dict[str, Any] | None = None, **values: Any) -> list[str]:
    """Return the levers of a job that ran with everything off, but for these."""
    preset = bound(command)
    preset.read_baseline(
        run({**OFF, **(arguments or {})}, **values).replace('"settings"', '"precision": "bf16", "settings"')
    )
    return [lever.label for lever in preset.levers(command, POINT) if not lever.missing]


def test_a_lever_needs_what_the_jobs_own_interpreter_has() -> None:
    assert offered() == ["compile", MODE, "data_workers", "no_unused_search", ALLOCATOR]
    assert "liger" in offered(packages=["liger_kernel"])
    assert "attention=flash2" not in offered(packages=ALL), "the script has no option for it"
    command = f"{OPTIONS} --attn_implementation sdpa"
    assert "attention=flash2" in offered(command, packages=ALL) and "attention=flash2" not in offered(command)
    assert "attention=flash2" in offered("trl sft --bf16", packages=ALL)
    assert offered(packages=ALL, compute=0, world=1, samples=4) == ["data_workers"], "without a GPU"


def test_what_the_job_has_already_is_not_offered() -> None:
    on = {"use_liger_kernel": True, "torch_compile": True, "dataloader_num_workers": 2}
    assert offered(arguments={**on, "ddp_find_unused_parameters": False}, packages=ALL) == [MODE, ALLOCATOR]
    assert "fused_optimizer" in offered(arguments={"optim": "adamw_torch"})
    assert "fused_optimizer" not in offered(arguments={"optim": "adafactor"})


def test_an_argument_that_the_trainer_does_not_have_is_not_offered() -> None:
    assert "padding_free" in offered(attention="flash_attention_2")
    preset = bound()
    preset.read_baseline(run(attention="flash_attention_2"))
    assert [lever.label for lever in preset.levers(OPTIONS, POINT)] == [ALLOCATOR]


def test_a_variable_is_set_for_the_program_unless_the_command_has_it() -> None:
    preset = bound()
    preset.read_baseline(run(OFF))
    point: Params = {**POINT, "allocator": "expandable"}
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert setting in preset.apply_parameters(OPTIONS, point)
    assert preset.result_command(OPTIONS, point, Path("/study")) == f"env {setting} {OPTIONS}"
    plain, other = preset.in_place(POINT), preset.in_place(point)
    assert plain is not None and other is not None and plain.shares != other.shares
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        assert ALLOCATOR not in offered(f"{name}=max_split_size_mb:512 {OPTIONS}")


def test_attention_that_is_eager_is_exchanged_where_the_script_has_an_option_for_it() -> None:
    command = f"{OPTIONS} --attn_implementation eager"
    assert "attention=sdpa" in offered(command, attention="eager") and "attention=sdpa" not in offered(command)
    assert "attention=flex" in offered(command, attention="sdpa")
    assert "attention=flex" not in offered(command, attention="sdpa", compute=70)
    assert not any("attention" in name for name in offered(attention="eager"))


def test_every_second_layer_is_recomputed_where_all_are_and_the_release_can() -> None:
    def found(version: str, kwargs: str | None = None) -> list[str]:
        preset = bound()
        preset.read_baseline(run({**OFF, "gradient_checkpointing_kwargs": kwargs}, version=version))
        return [lever.label for lever in preset.levers(OPTIONS, {**POINT, "checkpointing": True})]

    assert "checkpoint_layers=2" in found("5.17.0") and "checkpoint_layers=2" not in found("5.9.1")
    assert "checkpoint_layers=2" not in found("5.17.0", '{"use_reentrant": true}')
    assert "checkpoint_layers=2" not in offered(version="5.17.0"), "nothing is recomputed at this point"


def test_lengths_are_grouped_on_request_where_they_differ() -> None:
    preset = bound(allow="length_grouping")
    preset.read_baseline(run(OFF))
    assert "length_grouping" not in [lever.name for lever in preset.levers(OPTIONS, POINT)], "of one length"
    [lever] = [each for each in LEVERS if each.name == "length_grouping"]
    many = replace(preset._space.job, new_shapes=0.9)
    assert lever.is_for(LeverPoint(job=many, params=POINT)) and lever.is_on_request
    assert not lever.is_for(LeverPoint(job=many, params={**POINT, "mbs": 1}))


def test_nothing_is_offered_before_a_run() -> None:
    assert bound().levers(OPTIONS, POINT) == []


def test_numerics_change_only_where_that_is_allowed() -> None:
    log = run({**OFF, "bf16": False, "tf32": None}).replace('"settings"', '"precision": "no", "settings"')
    for allow, wanted in {"none": {"tf32": True, "bf16": True}, "tf32": {"tf32": False, "bf16": True}}.items():
        preset = bound(allow=allow)
        preset.read_baseline(log)
        found = {lever.name: lever.is_on_request for lever in preset.levers(OPTIONS, POINT)}
        assert {name: found[name] for name in wanted} == wanted


def test_a_lever_is_written_and_must_arrive() -> None:
    preset = bound(f"{OPTIONS} --attn_implementation sdpa")
    preset.read_baseline(run(OFF, packages=ALL))
    point: Params = {**POINT, "data_workers": True, "attention": "flash2"}
    line = ParsedCommand.of(preset.apply_parameters(f"{OPTIONS} --attn_implementation sdpa", point))
    assert (line.get("--dataloader_num_workers"), line.get("--dataloader_prefetch_factor")) == ("4", "4")
    assert line.get("--attn_implementation") == "flash_attention_2"
    asked = preset.evaluator().arguments(point)  # type: ignore[attr-defined]
    assert asked["attn_implementation"] == "flash_attention_2" and asked["dataloader_persistent_workers"] is True
    assert set(preset.lever_space()) == {lever.name for lever in LEVERS}


def test_padding_free_is_offered_where_trl_takes_it() -> None:
    flash = {"attention": "flash_attention_2"}
    assert "padding_free" not in offered(arguments={"max_length": 1024}, **flash), "samples would not be cut"
    assert "padding_free" not in offered(attention="sdpa")


def test_packed_rows_hold_as_many_tokens_as_an_update_had() -> None:
    own = {**OFF, "packing": False, "padding_free": False, "max_length": 1024}
    preset = bound("python train.py --per_device_train_batch_size 8", allow="packing")
    log = run({**own, "per_device_train_batch_size": 8}, world=1, samples=8, tokens=2048)
    preset.read_baseline(log)
    assert "packing" in [lever.name for lever in preset.levers("", POINT)]
    point = {"mbs": 8, "checkpointing": False, "packing": True}
    asked = preset.evaluator().arguments(point)  # type: ignore[attr-defined]
    assert asked["per_device_train_batch_size"] == 2 and asked["gradient_accumulation_steps"] == 1, "of 256 tokens each"
    rows = {**own, "per_device_train_batch_size": 2, "packing": True}
    packed = run(rows, world=1, samples=2, tokens=4096)
    assert preset.evaluator().evaluate(packed, {"parameters": point}) == 16.0, "twice the tokens in the same time"
    assert preset.evaluator().evaluate(log, {"parameters": {}}) == 8.0
    for arguments in ({"max_length": None}, {"max_length": 300}, {"padding_free": True}):
        assert "packing" not in offered(arguments={**own, **arguments}, world=1, samples=8, tokens=2048)
    assert "packing" not in offered(arguments=own), "tokens are not counted"
