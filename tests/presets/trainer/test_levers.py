from __future__ import annotations

from typing import Any

from tests.presets.trainer.runs import OPTIONS, bound, run
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
ALL = ["flash_attn", "liger_kernel"]


def offered(command: str = OPTIONS, arguments: dict[str, Any] | None = None, **values: Any) -> list[str]:
    """Return the levers of a job that ran with everything off, but for these."""
    preset = bound(command)
    preset.read_baseline(
        run({**OFF, **(arguments or {})}, **values).replace('"settings"', '"precision": "bf16", "settings"')
    )
    return [lever.label for lever in preset.levers(command, POINT) if not lever.missing]


def test_a_lever_needs_what_the_jobs_own_interpreter_has() -> None:
    assert offered() == ["compile", "data_workers", "no_unused_search"]
    assert "liger" in offered(packages=["liger_kernel"])
    assert "attention=flash2" not in offered(packages=ALL), "the script has no option for it"
    command = f"{OPTIONS} --attn_implementation sdpa"
    assert "attention=flash2" in offered(command, packages=ALL) and "attention=flash2" not in offered(command)
    assert "attention=flash2" in offered("trl sft --bf16", packages=ALL)
    assert offered(packages=ALL, compute=0, world=1, samples=4) == ["data_workers"], "without a GPU"


def test_what_the_job_has_already_is_not_offered() -> None:
    on = {"use_liger_kernel": True, "torch_compile": True, "dataloader_num_workers": 2}
    assert offered(arguments={**on, "ddp_find_unused_parameters": False}, packages=ALL) == []
    assert "fused_optimizer" in offered(arguments={"optim": "adamw_torch"})
    assert "fused_optimizer" not in offered(arguments={"optim": "adafactor"})


def test_an_argument_that_the_trainer_does_not_have_is_not_offered() -> None:
    assert "padding_free" in offered(attention="flash_attention_2")
    preset = bound()
    preset.read_baseline(run(attention="flash_attention_2"))
    assert [lever.name for lever in preset.levers(OPTIONS, POINT)] == []


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
