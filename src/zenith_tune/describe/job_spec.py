"""What a training job keeps while its layout is chosen: sequence length, precision and the framework that runs it."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.describe.cluster_spec import ClusterSpec, precision_class
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec

PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4")
DISPATCHERS = ("alltoall", "flex")
"""How tokens reach experts on other ranks: NCCL's all-to-all, or kernels that send a token to a node once (DeepEP)."""


def is_narrow(precision: str) -> bool:
    """Tell whether products are of 8 bits or fewer."""
    return precision_class(precision) != "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What every layout of one job shares; the global batch is a column of the layouts."""

    seq_len: int
    framework: FrameworkSpec
    precision: str = "bf16"
    """bf16, fp16, fp32, or the low-precision recipes fp8..., mxfp8, nvfp4."""
    dispatcher: str = "alltoall"
    """One of DISPATCHERS; unused for a model without experts."""
    gathers_fp8: bool = False
    """Whether a sharded optimizer keeps the weights in fp8 alone (--fp8-param-gather)."""
    imbalance: float = 0.0
    """Standard deviation of the experts' loads over their mean; 0 is balanced routing."""
    way: str = ""
    """What the framework's states assume beyond plain training, such as LoRA."""
    reference: bool = False
    """Whether a frozen copy of the model runs forward too, as in DPO."""
    new_shapes: float = 0.0
    """Share of micro-batches of a new shape: 1 where samples have many lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSubject:
    """All that an estimate needs besides the layout."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
