"""What the output layer and the loss need: logits, their copies in fp32, and the gradient of both.

Megatron's vocab-parallel cross entropy (tensor_parallel/cross_entropy.py) keeps the half-precision logits and one fp32
copy that becomes softmax and gradient in place: 6 bytes per logit, going forward and backward. torch's cross entropy
holds three fp32 tensors going backward (log-softmax, its gradient, that of the logits): 12 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.stage import Stage
from zenith_tune.estimate.workload import Workload

HALF = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMemory:
    """Hold bytes per rank; 0 on stages without the output layer."""

    forward: FloatArray
    backward: FloatArray


def head_memory(workload: Workload, stage: Stage, framework: FrameworkSpec) -> HeadMemory:
    """Return what the output layer and the loss need, going forward and going backward."""
    head = framework.head
    vocab = np.asarray(stage.padded_vocab)
    hidden = head.hidden * workload.hidden / stage.sequence_split
    loss = (hidden + head.backward_vocab * vocab) * stage.tokens
    projection = (hidden + HALF * vocab) * stage.tokens + head.weight_gradient * vocab * workload.hidden
    going_forward = (hidden + head.forward_hidden * workload.hidden + head.forward_vocab * vocab) * stage.tokens
    # Multi-token prediction computes logits and loss once more for each of its layers.
    sets = stage.is_last + stage.mtp_layers
    return HeadMemory(forward=sets * going_forward, backward=sets * np.maximum(loss, projection))
