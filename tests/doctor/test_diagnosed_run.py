"""The examples of diagnosed run."""

from __future__ import annotations

from zenith_tune.doctor.diagnosed_run import Measured


def test_the_size_of_a_gpu_is_in_its_out_of_memory_message() -> None:
    measured = Measured(cause="CUDA out of memory. GPU 0 has a total capacity of 79.50 GiB")
    assert measured.capacity_bytes == 79.5 * 2**30
