from __future__ import annotations

from pathlib import Path

from zenith_tune.doctor.diagnosed_run import DiagnosedRun, RunHints
from zenith_tune.doctor.logged_run import dumped_arguments, dumped_command, from_log, recompute_modules
from zenith_tune.presets.megatron.job import MegatronLmOverrides, read_job

VALUES = {
    "add_bias_linear": "False",
    "attention_backend": "AttnBackend.unfused",
    "bf16": "True",
    "fp8": "None",
    "global_batch_size": "64",
    "group_query_attention": "True",
    "hidden_size": "4096",
    "micro_batch_size": "2",
    "normalization": "RMSNorm",
    "num_attention_heads": "32",
    "num_experts": "None",
    "num_layers": "32",
    "num_query_groups": "8",
    "pipeline_model_parallel_size": "4",
    "recompute_granularity": "selective",
    "recompute_modules": "['core_attn', 'mlp']",
    "seq_length": "8192",
    "sequence_parallel": "True",
    "swiglu": "True",
    "tensor_model_parallel_size": "2",
    "use_distributed_optimizer": "True",
    "virtual_pipeline_model_parallel_size": "2",
    "vocab_size": "None",
    "world_size": "16",
}
VOCAB = " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)\n"


def dump(values: dict[str, str], prefix: str = "") -> str:
    rows = "".join(f"{prefix}  {name} {'.' * (48 - len(name))} {value}\n" for name, value in values.items())
    head, tail = "-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21
    return f"{prefix}{head}\n{rows}{prefix}{tail}\n"


def test_a_dump_becomes_the_job_that_it_is_of() -> None:
    arguments = dumped_arguments(f"using world size: 16\n{dump(VALUES)}{VOCAB}")
    job = read_job(dumped_command(arguments), MegatronLmOverrides(n_gpus=int(arguments["world_size"])))
    at, model = job.start, job.model
    assert model is not None and (model.num_kv_heads, model.vocab, model.linear_bias) == (8, 128256, False)
    assert (at.tp, at.pp, at.vp, at.dp, at.micro_batch, at.global_batch) == (2, 4, 2, 2, 2, 64)
    assert (at.zero, at.sequence_parallel, at.flash_attention, at.recompute) == (1, True, False, "selective")
    assert job.job.precision == "bf16" and recompute_modules(arguments) == ("core_attn", "mlp")


def test_levers_that_a_dump_says_are_on_are_not_off(tmp_path: Path) -> None:
    steps = " iteration 1/ 9 | elapsed time per iteration (ms): 6500.0 | global batch size: 64 |\n" * 6
    names = ("overlap_grad_reduce", "overlap_param_gather")
    for overlap in ("True", "False"):
        path = tmp_path / f"{overlap}.log"
        path.write_text(dump({**VALUES, **dict.fromkeys(names, overlap)}) + VOCAB + steps)
        run = from_log(path, None, RunHints(cluster="h100x16"))
        assert isinstance(run, DiagnosedRun)
        assert ("overlap=params" in [lever.label for lever in run.levers]) == (overlap == "False")


def test_ranks_before_the_lines_and_windows_line_ends_change_nothing() -> None:
    plain = dumped_arguments(dump(VALUES))
    assert dumped_arguments(dump(VALUES, prefix="[default0]:")) == plain
    assert dumped_arguments(dump(VALUES, prefix="0: ").replace("\n", "\r\n")) == plain


def test_heads_without_groups_have_no_groups() -> None:
    alone = {**VALUES, "group_query_attention": "False", "num_query_groups": "1"}
    model = read_job(dumped_command(dumped_arguments(dump(alone) + VOCAB)), MegatronLmOverrides(n_gpus=16)).model
    assert model is not None and model.num_kv_heads == 32


def test_the_last_dump_of_a_restarted_run_counts() -> None:
    later = {**VALUES, "micro_batch_size": "4"}
    assert dumped_arguments(dump(VALUES) + dump(later))["micro_batch_size"] == "4"


def test_a_log_without_a_whole_dump_says_nothing() -> None:
    text = dump(VALUES)
    assert dumped_arguments("") == {} == dumped_arguments(text[: len(text) // 2])
    assert dumped_arguments("--- end of arguments ---" * 3) == {}
