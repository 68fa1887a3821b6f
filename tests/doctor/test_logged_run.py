"""The examples of logged run."""

from __future__ import annotations

from zenith_tune.doctor.logged_run import dumped_arguments, log_causes, logged_steps, positive, recompute_modules


def test_dumped_arguments_are_read_however_long_their_names() -> None:
    rows = "  num_layers ...... 16\n  tokenizer_that_has_a_long_name  True\n"
    assert dumped_arguments(f"{'-' * 24} arguments {'-' * 24}\n{rows}{'-' * 20} end of arguments {'-' * 21}") == {
        "num_layers": "16",
        "tokenizer_that_has_a_long_name": "True",
    }


def test_modules_of_recomputation_are_read_from_a_dump() -> None:
    assert recompute_modules({"recompute_modules": "['core_attn', 'mlp']"}) == ("core_attn", "mlp")


def test_only_numbers_above_zero_are_positive() -> None:
    assert positive(3) == 3.0
    assert positive(-1) is None
    assert positive(True) is None
    assert positive("3") is None


def test_the_steps_of_megatron_bridge_are_read() -> None:
    logged = logged_steps("Step Time : 1.50s GPU utilization: 456.7MODEL_TFLOP/s/GPU")
    assert logged is not None
    assert logged.steps[0].seconds == 1.5


def test_a_log_shows_what_ended_the_run() -> None:
    assert [cause.kind.value for cause in log_causes("torch.OutOfMemoryError: CUDA out of memory.")] == [
        "out_of_memory"
    ]
