"""The weights of transformers' models under Megatron's names, and back, by one table.

Known are GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE and GPT-OSS. `{l}` is a layer and `{e}` an expert;
where Megatron has two names for a weight, the first is that of Transformer Engine's layers.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from zenith_checkpoint import mxfp4
from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.model_shape import Attention, ModelShape
from zenith_checkpoint.split_rules import Home, Split
from zenith_checkpoint.tensors import JoinedTensor, StoredTensor
from zenith_tune.errors import UsageError


class Form(enum.Enum):
    """The way in which a weight of Megatron's holds those of transformers."""

    SAME = "same"
    QKV = "qkv"
    """Queries, keys and values, group after group."""
    THIRDS = "thirds"
    """All queries, then all keys, then all values."""
    TURNED = "turned"
    """Transposed."""
    TURNED_THIRDS = "turned thirds"
    """Transposed, and all queries, then all keys, then all values."""
    GATED = "gated"
    """A gate on top of its up-projection."""
    PACKED = "packed"
    """All experts of a layer in one tensor."""
    PACKED_DOWN = "packed down"
    """All experts in one tensor, each transposed."""
    PACKED_UP = "packed up"
    """All experts in one tensor, each transposed, its gate and its up-projection taking turns."""
    MXFP4_DOWN = "MXFP4 down"
    """All experts in two tensors, blocks and scales."""
    MXFP4_UP = "MXFP4 up"
    """All experts in blocks and scales, the rows of gate and up-projection taking turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The names of one weight on both sides."""

    megatron: tuple[str, ...]
    hf: tuple[str, ...]
    form: Form


def _layer(megatron: str, hf: str, form: Form = Form.SAME, *, at: str = "model.layers") -> Rule:
    ours, theirs = (tuple(each.split(" ")) for each in (megatron, hf))
    decoder = tuple(f"decoder.layers.{{l}}.{name}" for name in ours)
    return Rule(megatron=decoder, hf=tuple(f"{at}.{{l}}.{name}" for name in theirs), form=form)


_FC1 = "mlp.experts.linear_fc1.weight{e} mlp.experts.local_experts.{e}.linear_fc1.weight"
_FC2 = "mlp.experts.linear_fc2.weight{e} mlp.experts.local_experts.{e}.linear_fc2.weight"
_QKV = "self_attn.q_proj.{0} self_attn.k_proj.{0} self_attn.v_proj.{0}"


def _outside(megatron: str, hf: str) -> Rule:
    return Rule(megatron=(megatron,), hf=(hf,), form=Form.SAME)


_OUTPUT = _outside("output_layer.weight", "lm_head.weight")
_EVERY = [
    _outside("embedding.word_embeddings.weight", "model.embed_tokens.weight"),
    _outside("decoder.final_layernorm.weight", "model.norm.weight"),
    _OUTPUT,
    _layer("self_attention.linear_qkv.layer_norm_weight input_layernorm.weight", "input_layernorm.weight"),
    _layer("mlp.linear_fc1.layer_norm_weight pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    _layer("self_attention.linear_qkv.weight", _QKV.format("weight"), Form.QKV),
    _layer("self_attention.linear_qkv.bias", _QKV.format("bias"), Form.QKV),
    _layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    _layer("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
    _layer("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    _layer("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
    _layer("self_attention.core_attention.softmax_offset", "self_attn.sinks"),
    _layer("mlp.linear_fc1.weight", "mlp.gate_proj.weight mlp.up_proj.weight", Form.GATED),
    _layer("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
]
_MIXTURES = {
    "mixtral": [
        _layer("mlp.router.weight", "block_sparse_moe.gate.weight"),
        _layer(_FC1, "block_sparse_moe.experts.{e}.w1.weight block_sparse_moe.experts.{e}.w3.weight", Form.GATED),
        _layer(_FC2, "block_sparse_moe.experts.{e}.w2.weight"),
    ],
    "qwen3_moe": [
        _layer("mlp.router.weight", "mlp.gate.weight"),
        _layer(_FC1, "mlp.experts.{e}.gate_proj.weight mlp.experts.{e}.up_proj.weight", Form.GATED),
        _layer(_FC2, "mlp.experts.{e}.down_proj.weight"),
    ],
    "gpt_oss": [
        _layer("mlp.router.weight", "mlp.router.weight"),
        _layer("mlp.router.bias", "mlp.router.bias"),
        _layer(_FC1, "mlp.experts.gate_up_proj", Form.PACKED_UP),
        _layer(_FC1.replace("weight", "bias"), "mlp.experts.gate_up_proj_bias", Form.PACKED_UP),
        _layer(_FC2, "mlp.experts.down_proj", Form.PACKED_DOWN),
        _layer(_FC2.replace("weight", "bias"), "mlp.experts.down_proj_bias", Form.PACKED),
    ],
}
_GPT2_LAYER = [
    ("self_attention.linear_qkv.layer_norm_{0} input_layernorm.{0}", "ln_1.{0}", Form.SAME, Form.SAME),
    ("self_attention.linear_qkv.{0}", "attn.c_attn.{0}", Form.TURNED_THIRDS, Form.THIRDS),
    ("self_attention.linear_proj.{0}", "attn.c_proj.{0}", Form.TURNED, Form.SAME),
    ("mlp.linear_fc1.layer_norm_{0} pre_mlp_layernorm.{0}", "ln_2.{0}", Form.SAME, Form.SAME),
    ("mlp.linear_fc1.{0}", "mlp.c_fc.{0}", Form.TURNED, Form.SAME),
    ("mlp.linear_fc2.{0}", "mlp.c_proj.{0}", Form.TURNED, Form.SAME),
]
"""Both names, and the forms of weight and bias."""
_GPT2 = [
    _outside("embedding.word_embeddings.weight", "transformer.wte.weight"),
    _outside("embedding.position_embeddings.weight", "transformer.wpe.weight"),
    *(_outside(f"decoder.final_layernorm.{kind}", f"transformer.ln_f.{kind}") for kind in ("weight", "bias")),
    *(
        _layer(ours.format(kind), theirs.format(kind), form, at="transformer.h")
        for ours, theirs, *forms in _GPT2_LAYER
        for kind, form in zip(("weight", "bias"), forms, strict=True)
    ),
]
_QUANTIZED = [
    _layer(_FC1, "mlp.experts.gate_up_proj_blocks mlp.experts.gate_up_proj_scales", Form.MXFP4_UP),
    _layer(_FC2, "mlp.experts.down_proj_blocks mlp.experts.down_proj_scales", Form.MXFP4_DOWN),
]
"""As GPT-OSS is published; read only."""
_ALL = [*_EVERY, *chain(*_MIXTURES.values()), *_QUANTIZED, *_GPT2]
_PACKED = (Form.PACKED, Form.PACKED_DOWN, Form.PACKED_UP)
_MXFP4 = (Form.MXFP4_DOWN, Form.MXFP4_UP)
_NO_WEIGHT = re.compile(r".*\.rotary_emb\.inv_freq|transformer\.h\.[0-9]+\.attn\.(masked_)?bias", re.DOTALL)
"""Buffers that are saved with the weights; those of GPT-2 are its causal mask."""
_OF_GPT2 = re.compile(r"(h\.[0-9]+|wte|wpe|ln_f)\.", re.DOTALL)
"""The beginnings of its names where they are published without what holds them."""
_NOT_DENSE = ("_blocks", "_scales", ".weight_scale_inv", ".qweight")

Place = tuple[int, int]


KNOWN = "only GPT-2, Llama, Qwen2, Qwen3, Mistral, Mixtral, Qwen3-MoE and GPT-OSS are known"


_GPT2_QKV = "transformer.h.0.attn.c_attn.weight"


def is_hf(names: Mapping[str, object]) -> bool:
    """Tell whether weights have the names of a causal language model of transformers."""
    first = ("model.layers.0.self_attn.", _GPT2_QKV, _GPT2_QKV.removeprefix("transformer."))
    return "model.embed_tokens.weight" in names or any(name.startswith(first) for name in names)


def _matches(template: str, names: Mapping[str, object]) -> dict[Place, str]:
    """Return the names that a template stands for, by layer and expert."""
    pattern = re.escape(template).replace(r"\{l\}", r"(?P<l>[0-9]{1,6})").replace(r"\{e\}", r"(?P<e>[0-9]{1,6})")
    found = ((name, match.groupdict()) for name in names if (match := re.fullmatch(pattern, name)))
    return {(int(groups.get("l") or 0), int(groups.get("e") or 0)): name for name, groups in found}


def to_megatron(tensors: Mapping[str, StoredTensor], heads: Attention, *, sequential: bool) -> dict[str, StoredTensor]:
    """Return the weights of transformers under Megatron's names, in Megatron's order."""
    made: dict[str, StoredTensor] = {}
    tensors = _whole_names(tensors)
    used: set[str] = {name for name in tensors if _NO_WEIGHT.fullmatch(name)}
    mixtures = {place[0] for rules in _MIXTURES.values() for place in _matches(rules[0].hf[0], tensors)}
    for rule in _ALL:
        for (layer, expert), first in _matches(rule.hf[0], tensors).items():
            names = [each.format(l=layer, e=expert) for each in rule.hf]
            if any(name not in tensors for name in names):
                raise UsageError(f"the weights hold {first!r}, but not all of {', '.join(names)}", hint="save it again")
            used.update(names)
            parts = [tensors[name] for name in names]
            template = _template(rule, is_mixture=layer in mixtures, sequential=sequential)
            for number, data in _ours(rule.form, parts, heads):
                name = template.format(l=layer, e=expert if number is None else number)
                key_parts = (name.count(".") + 1,)
                made[name] = replace(parts[0], name=name, key_parts=key_parts, data=data)
    unknown = next((name for name in tensors if name not in used), None)
    if unknown is not None:
        problem = f"no rule says what {unknown!r} is called in Megatron"
        raise UsageError(problem, hint="save it dequantized" if unknown.endswith(_NOT_DENSE) else KNOWN)
    return made


def _whole_names(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return weights under the names of the model with its output layer, which those of GPT-2 are published without."""
    return {f"transformer.{name}" if _OF_GPT2.match(name) else name: each for name, each in tensors.items()}


def _template(rule: Rule, *, is_mixture: bool, sequential: bool) -> str:
    """Return Megatron's name: a norm is fused with the layer behind it, unless that is a mixture of experts."""
    first, *others = rule.megatron
    is_other = sequential if "{e}" in first else is_mixture and first.endswith("mlp.linear_fc1.layer_norm_weight")
    return others[0] if is_other else first


def _ours(form: Form, parts: list[StoredTensor], heads: Attention) -> Iterator[tuple[int | None, LazyTensor]]:
    """Yield Megatron's weights that transformers' make up, each with the number of its expert."""
    data = [each.data for each in parts]
    if form in (Form.TURNED, Form.TURNED_THIRDS):
        data = [data[0].transposed()]
    if form in (Form.SAME, Form.TURNED):
        yield None, data[0]
    elif form is Form.GATED:
        yield None, LazyTensor.cat(data)
    elif form in (Form.THIRDS, Form.TURNED_THIRDS):
        size = data[0].shape[0] // 3
        yield None, _fused([data[0].part(0, at * size, (at + 1) * size) for at in range(3)], heads)
    elif form is Form.QKV:
        yield None, _fused(data, heads)
    elif form in _MXFP4:
        yield from enumerate(mxfp4.dequantized(parts[0], parts[1], row_step=2 if form is Form.MXFP4_UP else 1))
    else:
        for expert in range(data[0].shape[0]):
            weight = data[0].select(expert)
            if form is not Form.PACKED:
                weight = weight.transposed()
            if form is Form.PACKED_UP:
                weight = LazyTensor.cat([weight.part(0, first, weight.shape[0], 2) for first in range(2)])
            yield expert, weight


def _fused(data: list[LazyTensor], heads: Attention) -> LazyTensor:
    q, k, v = data
    size, queries = heads.head_dim, heads.heads // heads.kv_heads * heads.head_dim
    parts = []
    for group in range(heads.kv_heads):
        parts.append(q.part(0, group * queries, (group + 1) * queries))
        parts += [each.part(0, group * size, (group + 1) * size) for each in (k, v)]
    return LazyTensor.cat(parts)


def _unfused(data: LazyTensor, heads: Attention) -> Iterator[LazyTensor]:
    size, queries = heads.head_dim, heads.heads // heads.kv_heads * heads.head_dim
    whole = queries + 2 * size
    starts = [group * whole for group in range(heads.kv_heads)]
    for first, last in ((0, queries), (queries, queries + size), (queries + size, whole)):
        yield LazyTensor.cat([data.part(0, at + first, at + last) for at in starts])


def to_hf(tensors: Mapping[str, JoinedTensor], attention: tuple[Attention, ...]) -> list[JoinedTensor]:
    """Return Megatron's weights under the names of transformers, in its order."""
    is_mixture = any(".router." in name for name in tensors)
    is_gpt2 = any(name.endswith("embedding.position_embeddings.weight") for name in tensors)
    rules = [*_GPT2, _OUTPUT] if is_gpt2 else [*_EVERY, *(_MIXTURES[_family(tensors)] if is_mixture else [])]
    made: list[JoinedTensor] = []
    used: set[str] = set()
    for rule in rules:
        found = {place: name for template in rule.megatron for place, name in _matches(template, tensors).items()}
        used.update(found.values())
        by_layer: dict[Place, list[JoinedTensor]] = {}
        for (layer, expert), name in sorted(found.items()):
            key = (layer, 0) if rule.form in _PACKED else (layer, expert)
            by_layer.setdefault(key, []).append(tensors[name])
        for (layer, expert), parts in by_layer.items():
            names = [each.format(l=layer, e=expert) for each in rule.hf]
            whole = replace(parts[0], split=Split.WHOLE, home=Home.UNKNOWN)
            for name, data in zip(names, _theirs(rule.form, parts, attention), strict=True):
                made.append(replace(whole, name=name, data=data))
    unknown = next((name for name in tensors if name not in used), None)
    if unknown is not None:
        problem = f"no rule says what {unknown!r} is called in transformers"
        raise UsageError(problem, hint=KNOWN)
    return made


def _family(tensors: Mapping[str, JoinedTensor]) -> str:
    """Return which mixture of experts the weights are of."""
    if any(name.endswith(".softmax_offset") for name in tensors):
        return "gpt_oss"
    return "qwen3_moe" if any(name.endswith(".q_layernorm.weight") for name in tensors) else "mixtral"


def _theirs(form: Form, parts: list[JoinedTensor], attention: tuple[Attention, ...]) -> Iterator[LazyTensor]:
    """Yield transformers' weights that Megatron's make up."""
    data = [each.data for each in parts]
    half = parts[0].shape[0] // 2
    if form is Form.SAME:
        yield data[0]
    elif form is Form.GATED:
        yield from (data[0].part(0, start, start + half) for start in (0, half))
    elif form is Form.TURNED:
        yield data[0].transposed()
    elif form in (Form.QKV, Form.THIRDS, Form.TURNED_THIRDS):
        if len(attention) != 1:
            problem = f"{parts[0].name!r} cannot be taken apart, as the heads are not known"
            raise UsageError(problem, hint="give --model, or --heads and --kv-heads")
        apart = _unfused(data[0], attention[0])
        if form is Form.QKV:
            yield from apart
        else:
            whole = LazyTensor.cat(list(apart))
            yield whole.transposed() if form is Form.TURNED_THIRDS else whole
    elif form is Form.PACKED:
        yield LazyTensor.stack(data)
    else:
        if form is Form.PACKED_UP:
            data = [LazyTensor.interleaved([each.part(0, at, at + half) for at in (0, half)]) for each in data]
        yield LazyTensor.stack([each.transposed() for each in data])


def heads_of(tensors: Mapping[str, StoredTensor], shape: ModelShape, folder: Path) -> Attention:
    """Return the heads that the sizes of the projections make up."""
    fused, norm = _whole_names(tensors).get(_GPT2_QKV), tensors.get("model.layers.0.self_attn.q_norm.weight")
    names = [f"model.layers.0.self_attn.{each}_proj.weight" for each in "qk"]
    missing = next((name for name in names if name not in tensors), None)
    if missing is not None and fused is None:
        raise UsageError(f"{folder} must hold {missing!r}, but does not", hint=KNOWN)
    rows = [tensors[name].shape[0] for name in names] if fused is None else [fused.shape[0]] * 2
    size = shape.head_dim or (norm.shape[0] if norm is not None else None)
    if size is None and shape.heads:
        size = rows[0] // shape.heads
    if not size:
        raise UsageError(f"the size of a head in {folder} is not known", hint="give --model or --head-dim")
    if any(each % size for each in rows) or rows[0] % rows[1]:
        problem = f"{rows[0]} rows of queries and {rows[1]} of keys are no heads of {size}"
        raise UsageError(problem, hint="check --model and --head-dim")
    return Attention(heads=rows[0] // size, kv_heads=rows[1] // size, head_dim=size)
