from __future__ import annotations

import pytest

from zenith_tune.describe.gpu_catalog import (
    find_gpu,
    gpu_name,
    gpu_spec,
    has_bf16,
    known_gpus,
    match_gpu,
    node_fields,
    num_nvlinks,
    nvlink_bytes_per_s,
    public_price,
)
from zenith_tune.errors import UnknownNameError
from zenith_tune.units import GIB

# Marketed memory in GB or GiB, dense bf16 (V100: fp16) and memory rate, from the makers' datasheets.
DATASHEETS = {
    "v100-16": (16, 125e12, 0.9e12),
    "v100-32": (32, 125e12, 0.9e12),
    "a100-40": (40, 312e12, 1.555e12),
    "a100-80": (80, 312e12, 2.039e12),
    "a800": (80, 312e12, 2.039e12),
    "h100": (80, 989e12, 3.35e12),
    "h200": (141, 989e12, 4.8e12),
    "b200": (180, 2250e12, 8e12),
    "b300": (270, 2250e12, 8e12),
    "gb200": (186, 2500e12, 8e12),
    "gb300": (279, 2500e12, 8e12),
    "mi300x": (192, 1307e12, 5.3e12),
    "mi355x": (288, 2516.6e12, 8e12),
    "h20": (96, 148e12, 4e12),
    "gh200": (96, 989e12, 4e12),
    "rtx-5090": (32, 209.5e12, 1.792e12),
    "rtx-a6000": (48, 154.8e12, 0.768e12),
}
# Error correction of GDDR6 takes a sixteenth of the memory itself.
CORRECTED = {"t4": (16, 65e12, 0.32e12), "l4": (24, 121e12, 0.3e12)}
NVLINK_ONE_WAY = {"v100-32": 150e9, "a100-80": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9, "gb300": 900e9}


@pytest.mark.parametrize("name", [*DATASHEETS, *CORRECTED])
def test_gpus_have_the_figures_of_their_datasheets(name: str) -> None:
    memory, flops, bandwidth = (DATASHEETS | CORRECTED)[name]
    gpu, least = gpu_spec(name), 0.9 if name in CORRECTED else 0.96
    assert least * memory < gpu.memory_bytes / GIB <= memory
    assert gpu.bf16_flops == pytest.approx(flops, rel=0.001)
    assert gpu.memory_bytes_per_s == pytest.approx(bandwidth, rel=0.001)


@pytest.mark.parametrize("name", NVLINK_ONE_WAY)
def test_nvlink_is_half_of_the_rate_that_makers_print_for_both_ways(name: str) -> None:
    assert node_fields(name)["fast_link"].bytes_per_s == NVLINK_ONE_WAY[name]


def test_low_precisions_are_dense_rates() -> None:
    assert gpu_spec("h100").fp8_flops == pytest.approx(2 * gpu_spec("h100").bf16_flops, rel=0.001)
    assert gpu_spec("b200").fp4_flops == 4 * gpu_spec("b200").bf16_flops
    assert gpu_spec("a100-80").fp8_flops == 0


@pytest.mark.parametrize("precision", ["fp8", "FP8-CS", "FP8-MX", "float8", "float8 rowwise", "fp8 current scaling"])
def test_eight_bits_run_at_their_rate_whatever_they_are_called(precision: str) -> None:
    assert gpu_spec("h100").matrix_flops(precision) == gpu_spec("h100").fp8_flops
    assert gpu_spec("a100-80").matrix_flops(precision) == gpu_spec("a100-80").bf16_flops, "it has no such unit"


@pytest.mark.parametrize("name", known_gpus())
def test_every_gpu_of_the_catalog_is_whole(name: str) -> None:
    gpu, fields = gpu_spec(name), node_fields(name)
    assert min(gpu.memory_bytes, gpu.bf16_flops, gpu.fp32_flops, gpu.memory_bytes_per_s) > 0
    assert fields["fast_link"].bytes_per_s >= fields["node_link"].bytes_per_s
    assert 0 < fields["fast_link"].latency_s <= fields["network"].latency_s < 1e-3
    assert (
        max(fields["gpus_per_node"], fields["fast_domain"]) % min(fields["gpus_per_node"], fields["fast_domain"]) == 0
    )


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100-16"),
        ("Tesla V100-SXM3-32GB", "v100-32"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H100 96GB HBM2e", "h100-96"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA H1000", None),
        ("", None),
    ],
)
def test_the_drivers_name_for_a_gpu_finds_its_entry(driver_name: str, name: str | None) -> None:
    assert match_gpu(driver_name) == name


def test_a_gpu_without_bfloat16_says_so() -> None:
    assert [name for name in known_gpus() if not has_bf16(name)] == ["v100-16", "v100-32", "t4"]


def test_aliases_in_any_case_find_their_gpu() -> None:
    assert [find_gpu(name) for name in ("A100", "V100", "H100-80", "MI300", "tpu")] == [
        "a100-80",
        "v100-32",
        "h100",
        "mi300x",
        None,
    ]


def test_an_unknown_gpu_is_answered_with_a_guess() -> None:
    with pytest.raises(UnknownNameError, match=r"'h10'.*'h100'.* a10, a100-40"):
        gpu_name("h10")


def test_a_gpu_is_found_by_an_alias() -> None:
    assert find_gpu("H100-80") == "h100"
    assert find_gpu("tpu") is None


def test_a_gpu_is_found_by_its_driver_name() -> None:
    assert match_gpu("NVIDIA A100-SXM4-40GB") == "a100-40"
    assert match_gpu("Voodoo 2") is None


def test_a_public_price_is_that_of_the_list() -> None:
    assert public_price("h100") == 3.85
    assert public_price("v100-32") is None


def test_old_gpus_have_no_bfloat16() -> None:
    assert not has_bf16("v100-32")
    assert has_bf16("a100-80")


def test_nvlinks_are_counted_by_the_catalog() -> None:
    assert num_nvlinks("h100") == 18
    assert num_nvlinks("l40s") == 0
    assert num_nvlinks("mine") == 0


def test_bandwidth_follows_the_number_of_nvlinks() -> None:
    assert nvlink_bytes_per_s("h100", 16) == 400000000000.0
