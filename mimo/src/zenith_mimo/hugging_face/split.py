"""Tensor parallelism of transformers' layers, by the plans that come with its configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from zenith_mimo.tensor_parallel import RowLinear, TensorParallel, copy_to_region

COLUMN, ROW, SUMMED = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""What transformers call outputs that are split, inputs that are, and whole weights whose gradients are added up."""
SQUARE_PLAN = {
    **dict.fromkeys((*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.fc1"), COLUMN),
    **dict.fromkeys(("self_attn.out_proj", "mlp.fc2"), ROW),
}
"""The plan of a layer of CLIP and SigLIP, for which transformers have none."""
NORMS = ("input_layernorm", "post_attention_layernorm", "layer_norm1", "layer_norm2")
"""What stands before the split parts of a layer, and feeds nothing else."""


def layer_plan(config: Any) -> dict[str, str]:
    """Return how transformers split each module of a layer."""
    found = {name.partition("layers.*.")[2]: how for name, how in config.base_model_tp_plan.items()}
    assert "" not in found and set(found.values()) <= {COLUMN, ROW, SUMMED}, found
    return found


def split_layers(layers: Iterable[nn.Module], plan: Mapping[str, str], tp: TensorParallel) -> None:
    """Leave this rank's part of layers that have no weights yet."""
    for layer in layers if tp.size > 1 else ():
        for name, how in plan.items():
            parent, _, last = name.rpartition(".")
            owner, module = layer.get_submodule(parent), layer.get_submodule(name)
            if how == COLUMN:
                for kind, whole in list(module.named_parameters()):
                    tp.share(f"the width of {name}", whole.shape[0])
                    setattr(module, kind, tp.parameter(*whole.shape, dim=0))
            elif how == ROW:
                assert isinstance(module, nn.Linear)
                row = RowLinear(module.in_features, module.out_features, tp, bias=module.bias is not None)
                setattr(owner, last, row)
            else:
                for parameter in module.parameters():
                    parameter.is_summed = True
        for name, module in layer.named_children():
            if name in NORMS:
                module.register_forward_hook(lambda _, __, hidden: copy_to_region(hidden, tp))


def sum_gradient(parameter: nn.Parameter, tp: TensorParallel) -> None:
    """Add up the gradients of a weight that every rank has whole, but uses for its own part."""

    def summed(grad: Tensor) -> Tensor:
        return tp.all_reduce(grad.clone())

    parameter.register_hook(summed)
