"""Ways to train with fewer bytes per parameter: adapters, smaller optimizers, states in the host's memory.

Legend: bytes per parameter of weights + gradients + optimizer, by example of a framework that shards fp32 weights.

- plain: 4 + 4 + 8, fp32 weights and two fp32 moments (Rajbhandari et al. 2020, arXiv 1910.02054);
- optimizer offload: 2 + 2 + 0, the 12 bytes of master weights and moments are in the host's memory (ZeRO-Offload, Ren
  et al. 2021, arXiv 2101.06840);
- 8-bit Adam: 4 + 4 + 2, moments of a byte each (Dettmers et al. 2022, arXiv 2110.02861);
- pure bf16: 2 + 2 + 4, no master copy;
- LoRA: 2 frozen, and 16 for the adapters alone (Hu et al. 2021, arXiv 2106.09685);
- QLoRA: 4.127 bits for the matrices of the layers, 2 bytes for the tables, and 16 for the adapters (Dettmers et al.
  2023, arXiv 2305.14314, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UnknownNameError, UsageError

OPTIMIZERS = ("adam", "adam-8bit", "adam-bf16")
HALF, WHOLE = 2.0, 4.0
HOST_BYTES = 12.0
NF4_BYTES = 4.127 / 8
MOMENTS_SAVED = 6.0
"""Bytes that two moments of a byte each save over two in fp32."""
LORA_RANK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWay:
    """A way to train."""

    lora: bool = False
    qlora: bool = False
    optimizer: str = "adam"
    offload: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)
        if self.lora and self.qlora:
            raise UsageError("--lora keeps the model in bf16 and --qlora in 4 bits", hint="leave one of them out")
        if self.offload and self.optimizer != "adam":
            problem = f"--offload is for Adam in fp32, but got --optimizer {self.optimizer}"
            raise UsageError(problem, hint="leave one of them out")

    @property
    def has_adapters(self) -> bool:
        return self.lora or self.qlora

    @property
    def is_plain(self) -> bool:
        """Whether all parameters are trained, by Adam in fp32 on the GPU."""
        return self == TrainingWay()

    @property
    def name(self) -> str:
        """What is unlike plain training; empty where nothing is."""
        switched = {"LoRA": self.lora, "QLoRA": self.qlora, "optimizer offload": self.offload}
        optimizer = {"adam-8bit": ["8-bit Adam"], "adam-bf16": ["pure bf16"]}.get(self.optimizer, [])
        return ", ".join([name for name, is_on in switched.items() if is_on] + optimizer)

    @property
    def options(self) -> str:
        """The options of `zenithtune plan` that ask for it."""
        switched = {"--lora": self.lora, "--qlora": self.qlora, "--offload": self.offload}
        optimizer = [] if self.optimizer == "adam" else [f"--optimizer {self.optimizer}"]
        return " ".join([name for name, is_on in switched.items() if is_on] + optimizer)

    def trained(self, model: ModelSpec) -> ModelSpec:
        """Return the model with the share of it that is trained."""
        if not self.has_adapters:
            return model
        if model.traced:
            problem = f"adapters are counted by a model's widths, which {model.name} does not have"
            raise UsageError(problem, hint="give --model in place of --module")
        return replace(model, trained_share=adapter_params(model) / model.num_params)

    def states(self, framework: FrameworkSpec, model: ModelSpec) -> FrameworkSpec:
        """Return the framework with the bytes per parameter that it then keeps of a model."""
        f = framework
        if self.optimizer == "adam-8bit":
            f = replace(f, optimizer_bytes=f.optimizer_bytes - MOMENTS_SAVED)
        elif self.optimizer == "adam-bf16":
            f = replace(_in_half(f), optimizer_bytes=2 * HALF)
        if self.offload:
            f = replace(_in_half(f), optimizer_bytes=0.0, step_bytes=0.0, host_bytes=HOST_BYTES)
        if self.has_adapters:
            tables = model.embedding_params * (1 if model.tied_embeddings else 2) / model.num_params
            frozen = NF4_BYTES * (1 - tables) + HALF * tables if self.qlora else HALF
            adapters = WHOLE * adapter_params(model) / model.num_params
            f = replace(f, weight_bytes=frozen + adapters, cast_bytes=0.0)
        return f if self.is_plain else replace(f, variant="")


def _in_half(f: FrameworkSpec) -> FrameworkSpec:
    """Return a framework with weights in half precision, and gradients where they were as precise as the weights."""
    gradients = f.gradient_bytes - (f.weight_bytes - HALF)
    return replace(f, weight_bytes=HALF, gradient_bytes=gradients, cast_bytes=0.0)


def adapter_params(model: ModelSpec) -> float:
    """Return the parameters of LoRA's adapters: r (in + out) of each matrix; experts have none."""
    heads, groups = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = 2 * (model.hidden + heads) + 2 * (model.hidden + groups)
    matrices = 3 if model.gated_mlp else 2
    feed_forward = 0 if model.num_experts else matrices * (model.hidden + model.ffn_hidden)
    return LORA_RANK * model.num_layers * (attention + feed_forward)
