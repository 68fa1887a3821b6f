"""A rank of the plan as hardware: a GPU of a cluster, or a share of this host's cores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_mimo.planning.config import LANGUAGE
from zenith_mimo.planning.job import ENCODER, MODULES, MimoDevice
from zenith_mimo.planning.work import ModuleRates, PassRate
from zenith_mimo.preset.job import MimoArguments
from zenith_tune.describe.cluster_spec import ClusterSpec, GpuSpec, LinkSpec

H200_FLOPS, H200_BYTES_PER_S = 989e12, 4.8e12
MEASURED = {
    ENCODER: ModuleRates(
        forward=PassRate(flops_per_s=501e12, number_s=2.00e-11, layer_s=845e-6),
        backward=PassRate(flops_per_s=369e12, number_s=1.91e-11, layer_s=1285e-6),
    ),
    LANGUAGE: ModuleRates(
        forward=PassRate(flops_per_s=468e12, layer_s=652e-6),
        backward=PassRate(flops_per_s=484e12, number_s=5.40e-12, layer_s=1093e-6),
    ),
}
"""One H200, plain torch in bfloat16: RADIO-H's blocks, and attention and experts of the example's language model
(benchmarks/results/h200-mimo-2026-11-17.json). Other GPUs are taken to do as well by their stated peaks."""
MEASURED_HUGGING_FACE = MEASURED | {
    LANGUAGE: ModuleRates(
        forward=PassRate(flops_per_s=600e12, number_s=3.03e-11, layer_s=1.82e-3),
        backward=PassRate(flops_per_s=633e12, number_s=6.69e-11, layer_s=2.27e-3),
    )
}
"""The same with transformers' own language model, which starts more kernels in each layer: the mean of Llama's and
Qwen2's layers in that file."""
ROOM = 0.92
"""The part of a GPU's memory that training may fill."""
MATRIX_TO_VECTOR = 16
"""How many times faster matrix units are, where a GPU's vector rate is not stated."""
UPDATE_BYTES = 30
"""Read and written by AdamW for a parameter: gradient, weight and two moments of 4 bytes, their new values, a copy."""
GUESSED_FLOPS = 2.5e10
"""Of one CPU rank on small matrices: the ranking changes with it, and trials correct it."""
START_S = {"forward": 1.2e-3, "backward": 1.5e-3}
UPDATE_S = 1e-8
"""Starting a layer's operations on a CPU, and updating a parameter: small models spend most of a step in the former
(layers of hidden size 64 to 320 and AdamW in CPU seconds of one core, 2026-11-17)."""
CPU_LINK = LinkSpec(bytes_per_s=1e9, latency_s=1e-3)
"""Stated, not fitted: messages between processes of one machine."""


def gpu_device(
    cluster: ClusterSpec,
    given: MimoArguments,
    *,
    is_low: bool,
    is_sharded: bool,
    measured: Mapping[str, ModuleRates] = MEASURED,
) -> MimoDevice:
    """Return a cluster's GPU; `is_low` computes in bfloat16, `is_sharded` shares out the optimizer's state."""
    # Without a fast link a node's GPUs reach one another over PCIe.
    domain, fast_link = cluster.fast_domain, cluster.fast_link
    if domain == 1:
        domain, fast_link = cluster.gpus_per_node, cluster.node_link
    gpu = cluster.gpu
    peak = gpu.bf16_flops if is_low else gpu.fp32_flops or gpu.bf16_flops / MATRIX_TO_VECTOR
    return MimoDevice(
        flops_per_s=given.device_flops or peak,
        rates={} if given.device_flops else _rates(measured, gpu, peak, is_low),
        update_s=UPDATE_BYTES / gpu.memory_bytes_per_s,
        fast_link=fast_link,
        link=cluster.network,
        fast_domain=domain,
        memory_bytes=gpu.memory_bytes * ROOM if given.memory_gib is None else given.memory_gib * 2**30,
        **_number_sizes(is_low=is_low, is_sharded=is_sharded),
    )


def cpu_device(share: float, given: MimoArguments, *, is_low: bool, is_sharded: bool) -> MimoDevice:
    """Return a rank that has this share of its cores while all ranks of its host compute."""
    flops_per_s = given.device_flops or GUESSED_FLOPS
    passes = {name: PassRate(flops_per_s=flops_per_s, start_s=start_s) for name, start_s in START_S.items()}
    return MimoDevice(
        flops_per_s=flops_per_s,
        rates=dict.fromkeys(MODULES, ModuleRates(**passes)),
        update_s=UPDATE_S,
        share=share,
        fast_link=CPU_LINK,
        link=CPU_LINK,
        memory_bytes=math.inf if given.memory_gib is None else given.memory_gib * 2**30,
        **_number_sizes(is_low=is_low, is_sharded=is_sharded),
    )


def _number_sizes(*, is_low: bool, is_sharded: bool) -> dict[str, Any]:
    """Return the bytes of numbers and states: in bfloat16 2 of a weight, 4 of its gradient, 12 of fp32 copies."""
    sharded = 12.0 if is_low else 8.0
    return {
        "number_bytes": 2 if is_low else 4,
        "state_bytes": 18.0 if is_low else 16.0,
        "sharded_bytes": sharded if is_sharded else 0.0,
    }


def _rates(measured: Mapping[str, ModuleRates], gpu: GpuSpec, peak: float, is_low: bool) -> dict[str, ModuleRates]:
    """Return the rates measured on an H200 as another GPU's stated peaks, and wider numbers, scale them."""
    compute, memory = peak / H200_FLOPS, gpu.memory_bytes_per_s / H200_BYTES_PER_S / (1 if is_low else 2)

    def scaled(rate: PassRate) -> PassRate:
        return replace(rate, flops_per_s=rate.flops_per_s * compute, number_s=rate.number_s / memory)

    return {
        name: ModuleRates(forward=scaled(rates.forward), backward=scaled(rates.backward))
        for name, rates in measured.items()
    }
