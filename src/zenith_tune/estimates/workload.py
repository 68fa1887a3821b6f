"""Model, job and machine as plain numbers: scalars for one model, arrays for rows of many.

Every estimate is a function of a Workload, a Machine and a LayoutBatch, so that a million layouts of one model and a
thousand measured rows of different models use the same formulas.

Legend: s sequence length, h hidden size; sizes are counts of parameters of one layer before any splitting.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from zenith_tune.describe.cluster_spec import ClusterSpec, precision_class
from zenith_tune.describe.gpu_catalog import num_nvlinks
from zenith_tune.describe.job_spec import JobSpec, is_narrow
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout_batch import FloatArray as FloatArray
from zenith_tune.layouts.layout_batch import Number as Number
from zenith_tune.units import count

CAST_BYTES = {"fp8": 4.0, "fp8-rowwise": 6.0, "mxfp8": 4.0, "fp4": 3.0}
"""Bytes moved per number that is quantised by rows and by columns, where the kernel that wrote it finds its scale.

Reading it in bf16 and writing it twice, once more in bf16 where rows and columns have scales of their own, once more
read for the columns of blocks (pytorch/ao, torchao/testing/training/roofline_utils.py, of fused kernels)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sizes of one model and job; each field is a number, or an array with one number per layout.

    Fields without a note are those of ModelSpec.
    """

    seq_len: Number
    hidden: Number
    vocab: Number
    num_layers: Number
    num_moe_layers: Number
    num_heads: Number
    attention_params: Number
    """Attention parameters per layer, without norms."""
    query_size: Number
    kv_size: Number
    """Width of keys and values together."""
    value_size: Number
    dense_mlp_params: Number
    ffn_hidden: Number
    gated: Number
    """1 where the feed-forward part has three matrices, 0 where it has two."""
    num_experts: Number
    """0 for a dense model."""
    top_k: Number
    expert_params: Number
    moe_ffn_hidden: Number
    shared_params: Number
    shared_ffn_hidden: Number
    embedding_params: Number
    tied: Number
    norm_params: Number
    num_mtp_layers: Number
    position_params: Number
    whole_attention_params: Number = 0.0
    """Attention parameters that tensor parallelism does not split: down-projections of latent attention."""
    qk_norm: Number = 0.0
    """1 where queries and keys are normed, else 0."""
    saved_layer_bytes: Number = 0.0
    """Traced bytes per token that a layer keeps; 0 where its widths decide."""
    saved_other_bytes: Number = 0.0
    trained_share: Number = 1.0
    fused_dispatch: Number = 0.0
    """1 where special kernels dispatch tokens to experts (DeepEP), 0 for a plain all-to-all."""
    narrow: Number = 0.0
    """1 where products are of 8 bits or fewer, else 0."""
    cast_bytes: Number = 0.0
    """Bytes moved to quantise a number of a product's input or of its output's gradient; 0 in bf16."""
    gathers_fp8: Number = 0.0
    """JobSpec.gathers_fp8."""
    imbalance: Number = 0.0
    """JobSpec.imbalance; 0 for a dense model."""
    new_shapes: Number = 0.0
    """JobSpec.new_shapes."""
    reference: Number = 0.0
    """1 where a frozen copy of the model runs forward too, else 0."""

    @classmethod
    def of(cls, model: ModelSpec, job: JobSpec) -> Self:
        values = {
            "seq_len": job.seq_len,
            "gated": model.gated_mlp,
            "shared_params": model.shared_expert_params,
            "tied": model.tied_embeddings,
            "position_params": model.num_positions * model.hidden,
            "fused_dispatch": job.dispatcher == "flex",
            "narrow": is_narrow(job.precision),
            "cast_bytes": CAST_BYTES.get(precision_class(job.precision), 0.0),
            "gathers_fp8": job.gathers_fp8,
            "imbalance": job.imbalance if model.num_experts else 0.0,
            "new_shapes": job.new_shapes,
            "reference": job.reference,
        }
        values |= {field.name: getattr(model, field.name) for field in fields(cls) if field.name not in values}
        return cls(**{name: float(value) for name, value in values.items()})

    @classmethod
    def stack(cls, workloads: list[Self]) -> Self:
        """Join the workloads of many rows into one of arrays."""
        return cls(**{f.name: np.array([getattr(w, f.name) for w in workloads], np.float64) for f in fields(cls)})

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Self:
        """Return the chosen rows; scalars stay as they are."""
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**{name: of[chosen] if isinstance(of, np.ndarray) else of for name, of in rows.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peak rates and link speeds; each field is a number, or an array with one number per layout."""

    matrix_flops: Number
    """Peak of the matrix units in the job's precision."""
    attention_flops: Number
    """Peak of the matrix units in bf16, the precision of attention in every job."""
    memory_bytes_per_s: Number
    memory_bytes: Number
    num_gpus: Number
    gpus_per_node: Number
    fast_domain: Number
    fast_bytes_per_s: Number
    slow_bytes_per_s: Number
    """Rate outside a fast domain: of the network, or of PCIe in a single node without NVLink."""
    fast_latency_s: Number
    slow_latency_s: Number
    switch_sums: Number = 0.0
    """1 where the fast link's switches add up what passes through them (NVLink SHARP), else 0."""

    @classmethod
    def of(cls, cluster: ClusterSpec, precision: str) -> Self:
        gpu = cluster.gpu
        slow = cluster.network if cluster.num_nodes > 1 else cluster.node_link
        return cls(
            matrix_flops=gpu.matrix_flops(precision),
            attention_flops=gpu.bf16_flops,
            memory_bytes_per_s=gpu.memory_bytes_per_s,
            memory_bytes=float(gpu.memory_bytes),
            num_gpus=float(cluster.num_gpus),
            gpus_per_node=float(cluster.gpus_per_node),
            fast_domain=float(cluster.fast_domain),
            fast_bytes_per_s=cluster.fast_link.bytes_per_s,
            slow_bytes_per_s=slow.bytes_per_s,
            fast_latency_s=cluster.fast_link.latency_s,
            slow_latency_s=slow.latency_s,
            # NVSwitches of the generation of the first fp8 add up, where they join more GPUs than a board.
            switch_sums=float(cluster.fast_domain > BOARD and gpu.fp8_flops > 0 and num_nvlinks(gpu.name) > 0),
        )

    @classmethod
    def stack(cls, machines: list[Self]) -> Self:
        """Join the machines of many rows into one of arrays."""
        return cls(**{f.name: np.array([getattr(m, f.name) for m in machines], np.float64) for f in fields(cls)})


BOARD = 4
"""Most GPUs that NVLink joins without switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted time, memory and risk of each layout; the parts of a breakdown add up to its total."""

    step_s: FloatArray
    expected_s: FloatArray
    """Mean step over the errors of memory, with a charge for crashes, by which layouts are ranked."""
    time_parts: dict[str, FloatArray]
    """Seconds of a step by cause: compute, recompute, memory, tp, cp, ep, bubble, p2p, dp, optimizer, overhead."""
    memory_bytes: FloatArray
    """Peak device memory of the fullest pipeline stage: allocated, allocator's reserve, CUDA context."""
    memory_parts: dict[str, FloatArray]
    """Bytes on the fullest stage by cause: weights, gradients, optimizer, activations, logits, buffers, reserve..."""
    step_spread: FloatArray
    """Standard deviation of the logarithm of measured over estimated step time, on a machine whose level is known."""
    level_sd: FloatArray
    """Standard deviation that the machine's level adds: what all its steps are longer or shorter by."""
    memory_spread: FloatArray
    oom_probability: FloatArray

    def __len__(self) -> int:
        return len(self.step_s)

    def __repr__(self) -> str:
        if not len(self):
            return "Estimate(0 layouts)"
        step = f"step_s {self.step_s.min():.4g} to {self.step_s.max():.4g}"
        memory = f"memory_bytes {self.memory_bytes.min():.4g} to {self.memory_bytes.max():.4g}"
        return f"Estimate({count(len(self), 'layout')}, {step}, {memory})"
