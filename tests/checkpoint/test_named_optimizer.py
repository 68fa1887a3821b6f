"""Files of an optimizer that are named after ranks go with the weights: training goes on in another layout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.shard_files import need_torch
from tests.mentions import mentions
from tests.thoroughness import few_quick
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.output_place import Format
from zenith_tune.errors import UsageError

HIDDEN, HEADS, VOCAB, LENGTH, LAYERS = 8, 4, 16, 6, 4
CUTS = {
    "word_embeddings.weight": 0,
    "output_layer.weight": 0,
    "linear_qkv.weight": 0,
    "linear_qkv.bias": 0,
    "linear_fc1.weight": 0,
    "linear_fc1.bias": 0,
    "linear_proj.weight": 1,
    "linear_fc2.weight": 1,
}
"""The axis by which tensor ranks split a weight; they hold copies of all others."""
IN_LAYER = {
    "input_layernorm.weight": (HIDDEN,),
    "input_layernorm.bias": (HIDDEN,),
    "self_attention.linear_qkv.weight": (3 * HIDDEN, HIDDEN),
    "self_attention.linear_qkv.bias": (3 * HIDDEN,),
    "self_attention.linear_proj.weight": (HIDDEN, HIDDEN),
    "self_attention.linear_proj.bias": (HIDDEN,),
    "mlp.linear_fc1.weight": (4 * HIDDEN, HIDDEN),
    "mlp.linear_fc1.bias": (4 * HIDDEN,),
    "mlp.linear_fc2.weight": (HIDDEN, 4 * HIDDEN),
    "mlp.linear_fc2.bias": (HIDDEN,),
}
SHAPE = ModelShape(heads=HEADS, vocab=VOCAB)


def axis_of(name: str) -> int | None:
    return next((axis for end, axis in CUTS.items() if name.endswith(end)), None)


def first_weights() -> dict[str, Any]:
    torch = need_torch()
    torch.manual_seed(0)
    layers = {f"decoder.layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in IN_LAYER.items()}
    shapes = {
        "embedding.word_embeddings.weight": (VOCAB, HIDDEN),
        "embedding.position_embeddings.weight": (LENGTH, HIDDEN),
        **layers,
        "decoder.final_layernorm.weight": (HIDDEN,),
        "decoder.final_layernorm.bias": (HIDDEN,),
        "output_layer.weight": (VOCAB, HIDDEN),
    }
    return {name: torch.randn(shape) * 0.3 + ("norm.weight" in name) for name, shape in shapes.items()}


def logits(weights: dict[str, Any], tokens: Any) -> Any:
    """Compute what Megatron's GPT does with these weights."""
    torch = need_torch()
    functional = torch.nn.functional
    x = weights["embedding.word_embeddings.weight"][tokens] + weights["embedding.position_embeddings.weight"]
    for number in range(LAYERS):
        at = {name: weights[f"decoder.layers.{number}.{name}"] for name in IN_LAYER}
        y = functional.layer_norm(x, (HIDDEN,), at["input_layernorm.weight"], at["input_layernorm.bias"])
        fused = functional.linear(y, at["self_attention.linear_qkv.weight"], at["self_attention.linear_qkv.bias"])
        q, k, v = fused.reshape(LENGTH, HEADS, 3, HIDDEN // HEADS).permute(2, 1, 0, 3)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(x.shape)
        x = x + functional.linear(mixed, at["self_attention.linear_proj.weight"], at["self_attention.linear_proj.bias"])
        up = functional.gelu(functional.linear(x, at["mlp.linear_fc1.weight"], at["mlp.linear_fc1.bias"]))
        x = x + functional.linear(up, at["mlp.linear_fc2.weight"], at["mlp.linear_fc2.bias"])
    last = (weights["decoder.final_layernorm.weight"], weights["decoder.final_layernorm.bias"])
    return functional.linear(functional.layer_norm(x, (HIDDEN,), *last), weights["output_layer.weight"])


class Ranks:
    """The ranks of a layout: each has its own part of every weight, and torch's own optimizer over these."""

    def __init__(self, shards: dict[tuple[int, int], dict[str, Any]], *, num_groups: int) -> None:
        torch = need_torch()
        self.tp, self.pp = (1 + max(ranks[axis] for ranks in shards) for axis in (0, 1))
        self.shards = {
            ranks: {name: torch.nn.Parameter(each.clone()) for name, each in held.items()}
            for ranks, held in shards.items()
        }
        self.optimizers = {}
        for ranks, held in self.shards.items():
            wide = [each for each in held.values() if each.dim() > 1]
            flat = [each for each in held.values() if each.dim() == 1]
            two = [{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
            groups = two if num_groups == 2 else [{"params": list(held.values())}]
            self.optimizers[ranks] = torch.optim.AdamW(groups, lr=1e-2)

    @classmethod
    def of(cls, weights: dict[str, Any], tp: int, pp: int, *, num_groups: int) -> Ranks:
        shards: dict[tuple[int, int], dict[str, Any]] = {}
        for t, p in product(range(tp), range(pp)):
            for name, stage, local in placed(weights, pp):
                if stage == p:
                    axis = axis_of(name)
                    part = weights[name] if axis is None else weights[name].chunk(tp, axis)[t]
                    shards.setdefault((t, p), {})[local] = part
        return cls(shards, num_groups=num_groups)

    @classmethod
    def load(cls, folder: Path, tp: int, pp: int, *, num_groups: int) -> Ranks:
        torch = need_torch()
        all_ranks = list(product(range(tp), range(pp)))
        files = {(t, p): torch.load(folder / f"pytorch_model_tp_{t}_pp_{p}.bin") for t, p in all_ranks}
        ranks = cls(files, num_groups=num_groups)
        for (t, p), optimizer in ranks.optimizers.items():
            if (place := folder / f"optimizer_tp_{t}_pp_{p}.bin").is_file():
                optimizer.load_state_dict(torch.load(place))
        return ranks

    def save(self, folder: Path) -> Path:
        torch = need_torch()
        folder.mkdir()
        for (t, p), held in self.shards.items():
            weights = {name: each.detach() for name, each in held.items()}
            torch.save(weights, folder / f"pytorch_model_tp_{t}_pp_{p}.bin")
            torch.save(self.optimizers[t, p].state_dict(), folder / f"optimizer_tp_{t}_pp_{p}.bin")
        return folder

    def weights(self) -> dict[str, Any]:
        torch, whole = need_torch(), {}
        for name, stage, local in placed(first_weights(), self.pp):
            parts = [self.shards[t, stage][local] for t in range(self.tp)]
            axis = axis_of(name)
            whole[name] = parts[0] if axis is None else torch.cat(parts, axis)
        return whole

    def train(self, first: int, num_steps: int = 3) -> list[float]:
        torch, losses = need_torch(), []
        for step in range(first, first + num_steps):
            tokens = torch.arange(LENGTH + 1) * (step + 3) % VOCAB
            loss = torch.nn.functional.cross_entropy(logits(self.weights(), tokens[:-1]), tokens[1:])
            loss.backward()
            for (t, p), held in self.shards.items():
                for name, each in held.items():
                    if axis_of(name) is None and t:  # a copy has the gradient of the first
                        each.grad = self.shards[0, p][name].grad.clone()
            for optimizer in self.optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses


def placed(weights: dict[str, Any], pp: int) -> Iterator[tuple[str, int, str]]:
    """Yield each weight with its stage, and its name there."""
    per_stage = LAYERS // pp
    for name in weights:
        if name.startswith("decoder.layers."):
            number, _, rest = name.removeprefix("decoder.layers.").partition(".")
            yield name, int(number) // per_stage, f"decoder.layers.{int(number) % per_stage}.{rest}"
        else:
            yield name, 0 if name.startswith("embedding.") else pp - 1, name


def target(tp: int, pp: int, kind: Format | None = None) -> Target:
    return Target(tp=tp, pp=pp, vocab_divisor=1, format=kind, with_optimizer=True)


@pytest.mark.parametrize("num_groups", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("before", "after"), few_quick([((4, 1), (2, 4)), ((1, 1), (2, 2)), ((2, 2), (1, 1))], 1))
def test_three_further_steps_in_another_layout_are_those_without_a_change(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int], num_groups: int
) -> None:
    ranks = Ranks.of(first_weights(), *before, num_groups=num_groups)
    ranks.train(0)
    written = reshard(ranks.save(tmp_path / "run"), tmp_path / "new", target(*after), SHAPE)
    assert written.has_optimizer and not any("left out" in note for note in written.notes)
    expected = ranks.train(3)
    again = Ranks.load(tmp_path / "new", *after, num_groups=num_groups).train(3)
    assert again == pytest.approx(expected, rel=1e-5)
    for file in (tmp_path / "new").glob("optimizer_*"):
        file.unlink()
    fresh = Ranks.load(tmp_path / "new", *after, num_groups=num_groups).train(3)
    assert fresh[0] == pytest.approx(expected[0], rel=1e-5) and abs(fresh[2] / expected[2] - 1) > 1e-3


def test_they_are_named_as_left_out_where_they_are(tmp_path: Path) -> None:
    ranks = Ranks.of(first_weights(), 2, 1, num_groups=1)
    ranks.train(0)
    folder = ranks.save(tmp_path / "run")
    plain = Target(tp=1, pp=1, vocab_divisor=1)
    for notes in (
        reshard(folder, tmp_path / "new", plain, SHAPE).notes,
        merge(folder, tmp_path / "one.bin", SHAPE, vocab_divisor=1).notes,
    ):
        assert any(note.startswith("optimizer state: left out") for note in notes)
        assert any("optimizer_tp_0_pp_0.bin" in note for note in notes)
    assert not list((tmp_path / "new").glob("optimizer_*"))


def test_a_missing_file_of_a_rank_is_refused_and_new_ones_replace_old_ones(tmp_path: Path) -> None:
    ranks = Ranks.of(first_weights(), 2, 1, num_groups=1)
    ranks.train(0)
    folder = ranks.save(tmp_path / "run")
    reshard(folder, tmp_path / "new", target(1, 1), SHAPE)
    assert reshard(folder, tmp_path / "new", target(1, 1), SHAPE, force=True).has_optimizer
    (folder / "optimizer_tp_1_pp_0.bin").unlink()
    with pytest.raises(UsageError) as error:
        reshard(folder, tmp_path / "other", target(1, 1), SHAPE)
    assert mentions(error.value, folder / "optimizer_tp_1_pp_0.bin") and not (tmp_path / "other").exists()


def test_they_go_to_megatrons_own_formats_too(tmp_path: Path) -> None:
    ranks = Ranks.of(first_weights(), 1, 2, num_groups=2)
    ranks.train(0)
    folder = ranks.save(tmp_path / "run")
    assert reshard(folder, tmp_path / "new", target(2, 1, Format.MEGATRON), SHAPE).has_optimizer
