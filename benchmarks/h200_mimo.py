"""Layers of encoders and language models on one GPU at every tensor-parallel shard, against what the plan expects.

    PYTHONPATH=src python benchmarks/h200_mimo.py --output mimo.json

Needs torch and transformers only. Shapes are those of Megatron-LM's 20-layer MIMO example (RADIO-H; Mamba, attention
and experts, here in plain torch and not in the fused kernels of Transformer Engine and mamba-ssm) and of two pairs made
from Hugging Face's configurations without their weights. A shard is what one rank of a tensor-parallel group computes,
without the sums over the group. Times are medians of CUDA events, forward and backward apart.

Every layer is predicted at the stated rate of 40% of the peak, at the rates of its own module's rows, and at those of
all other pairs, which have not seen it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zenith_mimo.planning.config import TransformerConfig
from zenith_mimo.planning.work import MeasuredPass, ModuleRates, PassRate, fit_rate
from zenith_mimo.tensor_parallel import Block, TensorParallel

STATED_FLOPS = 0.4 * 989e12
"""What a plan without measurements takes for an H200: 40% of its dense bfloat16 peak."""
COLUMNS = ("q_proj", "k_proj", "v_proj", "fc1", "gate_proj", "up_proj")
ROWS = ("out_proj", "o_proj", "fc2", "down_proj")
BUDGET_S = 150.0


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layer of one module, which can be made at every shard."""

    pair: str
    module: str
    kind: str
    width: int
    make: Callable[[int], nn.Module]
    """Make the shard of one rank of a tensor-parallel group of that size; for experts of an expert-parallel one."""
    flops: Callable[[int, int], float]
    """Forward FLOPs of one unit of that many tokens on one rank."""
    tokens: tuple[int, ...]
    """Patches of an image or tokens of a sample."""
    shards: tuple[int, ...] = (1, 2, 4, 8)


class AloneInGroup(TensorParallel):
    """A rank of a group of which nobody else is there: what would be summed over the group stays its part."""

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Tensor:
        """Return the part."""
        return tensor


def block_kind(pair: str, module: str, config: TransformerConfig, tokens: tuple[int, ...]) -> LayerKind:
    """Return the runtime's own block, whose layers RADIO-H has."""
    h, f = config.hidden_size, config.ffn_size

    def make(tp: int) -> nn.Module:
        block = Block(config, AloneInGroup(size=tp), is_causal=False)
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.02)
        return block

    def flops(s: int, tp: int) -> float:
        return 2.0 * s * (4 * h * h + 2 * h * f + 2 * s * h) / tp

    return LayerKind(pair, module, "block", h, make, flops, tokens)


def transformers_kind(pair: str, module: str, config: Any, layer_class: Any, tokens: tuple[int, ...]) -> LayerKind:
    """Return a layer of transformers, sharded as its tensor-parallel plans do it."""
    is_causal = module == "language"
    config._attn_implementation = "sdpa"

    def layer() -> nn.Module:
        return layer_class(config, 0) if is_causal else layer_class(config)

    def make(tp: int) -> nn.Module:
        return WithPositions(shard(layer(), tp), config) if is_causal else WithoutMask(shard(layer(), tp))

    with torch.device("meta"):
        linear = int(sum(m.weight.numel() for m in layer().modules() if isinstance(m, nn.Linear)))
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads_of(config)
    width = heads_of(config) * head_dim

    def flops(s: int, tp: int) -> float:
        return 2.0 * s * (linear + (1 if is_causal else 2) * s * width) / tp

    # A rank has at least one key and value head.
    most = getattr(config, "num_key_value_heads", None) or heads_of(config)
    shards = tuple(tp for tp in (1, 2, 4, 8) if most % tp == 0)
    return LayerKind(pair, module, "layer", config.hidden_size, make, flops, tokens, shards)


def heads_of(config: Any) -> int:
    """Return the attention heads."""
    return int(config.num_attention_heads)


def shard(layer: nn.Module, tp: int) -> nn.Module:
    """Cut the linear layers to what one rank of a tensor-parallel group has."""
    for parent in list(layer.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and name in (*COLUMNS, *ROWS):
                num_in = child.in_features // (tp if name in ROWS else 1)
                num_out = child.out_features // (tp if name in COLUMNS else 1)
                setattr(parent, name, nn.Linear(num_in, num_out, bias=child.bias is not None))
    return layer


class WithoutMask(nn.Module):
    """Call a vision layer without a mask."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after the layer."""
        return first(self.layer(hidden, None))


class WithPositions(nn.Module):
    """Call a language model's layer with rotary positions."""

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__()
        self.layer = layer
        self._dim = getattr(config, "head_dim", None) or config.hidden_size // heads_of(config)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after the layer."""
        angles = torch.ones(1, hidden.shape[1], self._dim, device=hidden.device, dtype=hidden.dtype)
        return first(self.layer(hidden, position_embeddings=(angles, angles)))


def first(output: Any) -> Tensor:
    """Return the hidden vectors of a layer that may return more."""
    return output[0] if isinstance(output, tuple) else output


@dataclass(frozen=True, slots=True)
class HybridShape:
    """The language model of Megatron-LM's 20-layer example."""

    hidden: int = 2688
    heads: int = 32
    groups: int = 8
    head_dim: int = 128
    experts: int = 128
    top_k: int = 6
    expert_ffn: int = 1856
    shared_ffn: int = 3712
    mamba_heads: int = 64
    mamba_dim: int = 64
    mamba_groups: int = 8
    state: int = 128
    chunk: int = 256


class HybridAttention(nn.Module):
    """Grouped-query attention without positions."""

    def __init__(self, shape: HybridShape, tp: int) -> None:
        super().__init__()
        self.heads, self.groups, self.dim = shape.heads // tp, shape.groups // tp, shape.head_dim
        self.norm = nn.RMSNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, (self.heads + 2 * self.groups) * self.dim, bias=False)
        self.out = nn.Linear(self.heads * self.dim, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after the layer."""
        b, s, _ = hidden.shape
        heads = self.qkv(self.norm(hidden)).view(b, s, -1, self.dim).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.groups, self.groups], dim=1)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return hidden + self.out(seen.transpose(1, 2).reshape(b, s, -1))


class HybridExperts(nn.Module):
    """Experts of one rank of an expert-parallel group: as many tokens as without, for fewer experts."""

    def __init__(self, shape: HybridShape, ep: int) -> None:
        super().__init__()
        self.num, self.top_k = shape.experts // ep, shape.top_k
        self.norm = nn.RMSNorm(shape.hidden)
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.rise = nn.Parameter(torch.randn(self.num, shape.hidden, shape.expert_ffn) * 0.02)
        self.fall = nn.Parameter(torch.randn(self.num, shape.expert_ffn, shape.hidden) * 0.02)
        self.shared_rise = nn.Linear(shape.hidden, shape.shared_ffn, bias=False)
        self.shared_fall = nn.Linear(shape.shared_ffn, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after the layer, tokens shared out evenly."""
        tokens = self.norm(hidden).reshape(-1, hidden.shape[-1])
        weights = self.router(tokens).sigmoid().topk(self.top_k, dim=-1).values
        sent = tokens.repeat_interleave(self.top_k, dim=0)
        each = sent[: sent.shape[0] // self.num * self.num].view(self.num, -1, sent.shape[-1])
        made = torch.bmm(functional.relu(torch.bmm(each, self.rise)).square(), self.fall).view(-1, sent.shape[-1])
        made = functional.pad(made, (0, 0, 0, sent.shape[0] - made.shape[0]))
        mixed = (made.view(-1, self.top_k, sent.shape[-1]) * weights.unsqueeze(-1)).sum(1)
        shared = self.shared_fall(functional.relu(self.shared_rise(tokens)).square())
        return hidden + (mixed + shared).view_as(hidden)


class HybridMamba(nn.Module):
    """A Mamba-2 layer in chunks: within a chunk by products of matrices, between chunks by their states."""

    def __init__(self, shape: HybridShape, tp: int) -> None:
        super().__init__()
        self.heads, self.dim, self.state = shape.mamba_heads // tp, shape.mamba_dim, shape.state
        self.groups, self.chunk = shape.mamba_groups // tp, shape.chunk
        inner = self.heads * self.dim
        self.sizes = [inner, inner, self.groups * self.state, self.groups * self.state, self.heads]
        self.norm = nn.RMSNorm(shape.hidden)
        self.into = nn.Linear(shape.hidden, sum(self.sizes), bias=False)
        width = inner + 2 * self.groups * self.state
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.decay = nn.Parameter(torch.zeros(self.heads))
        self.out = nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after the layer."""
        b, s, _ = hidden.shape
        gate, *mixed, step = self.into(self.norm(hidden)).split(self.sizes, dim=-1)
        seen = functional.silu(self.conv(torch.cat(mixed, -1).transpose(1, 2))[..., :s].transpose(1, 2))
        x, into, out = seen.split(self.sizes[1:4], dim=-1)
        length = min(self.chunk, s)
        shape = (b, s // length, length)
        step = functional.softplus(step.float()).view(*shape, self.heads)
        x = x.reshape(*shape, self.heads, self.dim) * step.to(x.dtype).unsqueeze(-1)
        each = self.heads // self.groups
        into, out = (t.reshape(*shape, self.groups, self.state) for t in (into, out))
        passed = torch.cumsum(-self.decay.float().exp() * step, dim=2)
        gap = (passed.unsqueeze(3) - passed.unsqueeze(2)).permute(0, 1, 4, 2, 3)
        mask = torch.ones(length, length, device=x.device, dtype=torch.bool).tril()
        decay = gap.masked_fill(~mask, float("-inf")).exp().to(x.dtype)
        scores = torch.einsum("bclgn,bcmgn->bcglm", out, into).repeat_interleave(each, dim=2) * decay
        within = torch.einsum("bchlm,bcmhp->bclhp", scores, x)
        left = (passed[:, :, -1:] - passed).exp().to(x.dtype).unsqueeze(-1) * x
        grouped = left.view(*shape, self.groups, each, self.dim)
        states = torch.einsum("bclgn,bclgep->bcgenp", into, grouped)
        kept = passed[:, :, -1].exp().to(x.dtype).view(b, shape[1], self.groups, each, 1, 1)
        carried = [torch.zeros_like(states[:, 0])]
        for index in range(shape[1] - 1):
            carried.append(carried[-1] * kept[:, index] + states[:, index])
        between = torch.einsum("bclgn,bcgenp->bclgep", out, torch.stack(carried, 1))
        between = between.reshape(*shape, self.heads, self.dim) * passed.exp().to(x.dtype).unsqueeze(-1)
        return hidden + self.out((within + between).reshape(b, s, -1) * functional.silu(gate))


def hybrid_kinds(shape: HybridShape, tokens: tuple[int, ...], shards: tuple[int, ...]) -> list[LayerKind]:
    """Return the three kinds of layers of the example's language model, with the plan's arithmetic."""
    h = shape.hidden
    width = shape.heads * shape.head_dim
    attention = h * width * 2 + 2 * h * shape.groups * shape.head_dim
    d = shape.mamba_heads * shape.mamba_dim
    mamba = h * (3 * d + 2 * shape.mamba_groups * shape.state + shape.mamba_heads)
    shared, routed = 2 * h * shape.shared_ffn + h * shape.experts, shape.top_k * 2 * h * shape.expert_ffn
    pair = "Megatron-LM 20-layer example"
    return [
        LayerKind(
            pair,
            "language",
            "attention",
            h,
            lambda tp: HybridAttention(shape, tp),
            lambda s, tp: s * (2 * attention + 2 * s * width) / tp,
            tokens,
            shards,
        ),
        LayerKind(
            pair,
            "language",
            "mamba",
            h,
            lambda tp: HybridMamba(shape, tp),
            lambda s, tp: s * (2 * mamba + 6 * d * shape.state) / tp,
            tokens,
            shards,
        ),
        LayerKind(
            pair,
            "language",
            "experts",
            h,
            lambda ep: HybridExperts(shape, ep),
            lambda s, ep: s * 2 * (shared + routed),
            tokens,
            shards,
        ),
    ]


def all_kinds() -> list[LayerKind]:
    """Return the layers of the example and of two pairs of Hugging Face's shapes."""
    from transformers import CLIPVisionConfig, LlamaConfig, Qwen2Config, SiglipVisionConfig
    from transformers.models.clip.modeling_clip import CLIPEncoderLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
    from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer

    radio = TransformerConfig(num_layers=32, hidden_size=1280, num_heads=16, ffn_size=5120)
    clip = CLIPVisionConfig(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=24)
    llama = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32)
    siglip = SiglipVisionConfig(hidden_size=1152, intermediate_size=4304, num_attention_heads=16, num_hidden_layers=27)
    qwen = Qwen2Config(hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4)
    return [
        block_kind("Megatron-LM 20-layer example", "encoder", radio, (256, 1024, 4096, 16384)),
        *hybrid_kinds(HybridShape(), (4096, 8192), (1, 2, 4, 8)),
        transformers_kind("CLIP-L and Llama 7B", "encoder", clip, CLIPEncoderLayer, (577,)),
        transformers_kind("CLIP-L and Llama 7B", "language", llama, LlamaDecoderLayer, (2048, 4096)),
        transformers_kind("SigLIP-SO400M and Qwen2 7B", "encoder", siglip, SiglipEncoderLayer, (729,)),
        transformers_kind("SigLIP-SO400M and Qwen2 7B", "language", qwen, Qwen2DecoderLayer, (2048, 4096)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured shard."""

    pair: str
    module: str
    kind: str
    shards: int
    units: int
    """Images or samples at a time."""
    tokens: int
    """Of each."""
    width: int
    forward_flops: float
    forward_s: float
    backward_s: float


def measure(kind: LayerKind, shards: int, units: int, tokens: int, *, device: str, repeats: int) -> Row:
    """Run a layer forward and backward, and return the medians."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        layer = kind.make(shards).to(device, dtype)
    hidden = torch.randn(units, tokens, kind.width, device=device, dtype=dtype, requires_grad=True)
    times: list[tuple[float, float]] = []
    for _ in range(repeats + 2):
        marks = [mark(device)]
        output = layer(hidden)
        grad = torch.ones_like(output)
        marks.append(mark(device))
        output.backward(grad)
        marks.append(mark(device))
        times.append((between(marks[0], marks[1]), between(marks[1], marks[2])))
        layer.zero_grad(set_to_none=True)
        hidden.grad = None
    forward, backward = zip(*times[2:], strict=True)
    return Row(
        pair=kind.pair,
        module=kind.module,
        kind=kind.kind,
        shards=shards,
        units=units,
        tokens=tokens,
        width=kind.width,
        forward_flops=units * kind.flops(tokens, shards),
        forward_s=statistics.median(forward),
        backward_s=statistics.median(backward),
    )


def mark(device: str) -> Any:
    """Note a moment of the device."""
    if device != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(begin: Any, end: Any) -> float:
    """Return the seconds between two moments."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def points(kind: LayerKind) -> Iterator[tuple[int, int, int]]:
    """Yield the shards, units and tokens of a kind, one unit first."""
    for units in (1, 2, 4):
        for tokens in kind.tokens:
            for shards in kind.shards:
                yield shards, units, tokens


STATED = ModuleRates(forward=PassRate(flops_per_s=STATED_FLOPS), backward=PassRate(flops_per_s=STATED_FLOPS))


def rates_of(rows: list[Row]) -> ModuleRates:
    """Return the rates of measured layers."""
    return ModuleRates(
        forward=fit_rate([MeasuredPass(r.forward_flops, numbers_of(r), r.forward_s) for r in rows]),
        backward=fit_rate([MeasuredPass(2 * r.forward_flops, numbers_of(r), r.backward_s) for r in rows]),
    )


def numbers_of(row: Row) -> float:
    """Return the hidden numbers of a row."""
    return float(row.units * row.tokens * row.width)


def predicted(row: Row, rates: ModuleRates) -> dict[str, float]:
    """Return both passes as a plan expects them."""
    return {
        "forward_s": rates.forward.seconds(row.forward_flops, numbers_of(row)),
        "backward_s": rates.backward.seconds(2 * row.forward_flops, numbers_of(row)),
    }


def summary(rows: list[Row]) -> dict[str, Any]:
    """Return each module's rates, and predicted over measured for its layers: the median, the least and the most.

    The plain torch of a Mamba layer is no measure of the fused kernels that train: its rows stay out of the rates.
    """
    usable = [row for row in rows if row.kind != "mamba"]
    modules = []
    for pair, module in sorted({(row.pair, row.module) for row in rows}):
        others = [row for row in usable if row.pair != pair]
        alike = [row for row in usable if (row.pair, row.module) == (pair, module)]
        by = {"stated rate": STATED, "rates of its own": rates_of(alike)}
        by |= {"rates of the other pairs": rates_of(others)} if others else {}
        for kind in sorted({row.kind for row in rows if (row.pair, row.module) == (pair, module)}):
            own = [row for row in rows if (row.pair, row.module, row.kind) == (pair, module, kind)]
            errors = {name: ratios(own, rates) for name, rates in by.items()}
            modules.append({"pair": pair, "module": module, "kind": kind, "rows": len(own), **errors})
    rates = [
        {"pair": pair, "module": module}
        | asdict(rates_of([row for row in usable if (row.pair, row.module) == (pair, module)]))
        for pair, module in sorted({(row.pair, row.module) for row in usable})
    ]
    return {"rates": rates, "predicted over measured": modules}


def ratios(rows: list[Row], rates: ModuleRates) -> dict[str, float]:
    """Return predicted over measured for a layer's two passes together."""
    found = [sum(predicted(row, rates).values()) / (row.forward_s + row.backward_s) for row in rows]
    shown = {"median": statistics.median(found), "least": min(found), "most": max(found)}
    return {name: round(value, 4) for name, value in shown.items()}


def machine(device: str) -> dict[str, str]:
    """Return what was measured on."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "transformers": version("transformers")}


def write(path: Path, rows: list[Row], head: dict[str, Any]) -> None:
    """Write what there is so far."""
    body = {**head, "stated_flops_per_s": STATED_FLOPS, **summary(rows), "rows": [asdict(row) for row in rows]}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(body, indent=1) + "\n")
    part.replace(path)


def run(kinds: list[LayerKind], output: Path, *, device: str, repeats: int, budget_s: float) -> list[Row]:
    """Measure all kinds, one round of points after another, until the time is up."""
    begin, rows, left_out = time.monotonic(), [], 0
    for units in (1, 2, 4):
        for kind in kinds:
            for shards, at_once, tokens in points(kind):
                if at_once != units:
                    continue
                if time.monotonic() - begin > budget_s:
                    left_out += 1
                    continue
                try:
                    rows.append(measure(kind, shards, units, tokens, device=device, repeats=repeats))
                except torch.cuda.OutOfMemoryError:
                    left_out += 1
            if rows:
                head = {"date": date.today().isoformat(), "machine": machine(device), "left_out": left_out}
                write(output, rows, head)
    return rows


def main() -> None:
    """Measure on this machine's GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="no layer is begun after so long")
    parser.add_argument("--again", type=Path, metavar="FILE", help="predict the rows of an earlier run again")
    options = parser.parse_args()
    if options.again:
        known = json.loads(options.again.read_text())
        rows = [Row(**row) for row in known["rows"]]
        write(options.output, rows, {name: known[name] for name in ("date", "machine", "left_out")})
        return
    if not torch.cuda.is_available():
        parser.error("a CUDA GPU is needed")
    rows = run(all_kinds(), options.output, device="cuda", repeats=options.repeats, budget_s=options.budget_s)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
