"""The hook's look at the module that is trained, with torch itself."""

from __future__ import annotations

import importlib
import json
import warnings
from typing import Any

import pytest

from tests.requirements import need_module
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.hooks import model as model_hook

WIDTH, LAYERS, BATCH, TOKENS, WORDS = 16, 3, 2, 5, 40
FLOAT = 4


@pytest.fixture
def torch() -> Any:
    need_module("engines", "torch")
    import torch

    return torch


@pytest.fixture
def model(torch: Any) -> Any:
    """Return a model whose blocks keep what can be counted by hand: a product its input, and a tanh its output."""
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
    return torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH), torch.nn.Sequential(*blocks), torch.nn.Linear(WIDTH, WORDS)
    )


def watched(torch: Any, model: Any, prepared: Any = None, passes: int = 1) -> list[dict[str, Any]]:
    """Train for some passes, and return what the hook reported."""
    reported: list[dict[str, Any]] = []
    called = model if prepared is None else prepared
    model_hook.ModelWatch(model, called, reported.append)
    for _ in range(passes):
        called(torch.zeros(BATCH, TOKENS, dtype=torch.long)).sum().backward()
    json.dumps(reported)
    return reported


def test_blocks_and_what_they_keep_are_reported_once(torch: Any, model: Any) -> None:
    [reported] = watched(torch, model, passes=3)
    tokens = BATCH * TOKENS
    block = WIDTH * WIDTH + WIDTH
    assert reported["parameters"] == reported["trained"] == LAYERS * block + 2 * WORDS * WIDTH + WORDS
    assert (reported["config"], reported["dtype"], reported["head"]) == (None, "float32", WORDS)
    assert reported["input"] == {"name": "0", "shape": [BATCH, TOKENS]}
    blocks = reported["blocks"]
    assert (blocks["count"], blocks["parameters"], blocks["input"]) == (LAYERS, block, [BATCH, TOKENS, WIDTH])
    # A block's input is the output of the tanh before it: one tensor, however many ops keep it.
    inside = (LAYERS + 1) * tokens * WIDTH * FLOAT
    assert blocks["kept_bytes"] == inside // LAYERS
    assert blocks["kept_outside_bytes"] == tokens * 8, "the tokens that the embedding looks up"


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # of a CPU without bf16
def test_weights_in_lower_precision_are_not_taken_for_activations(torch: Any, model: Any) -> None:
    reported: list[dict[str, Any]] = []
    model_hook.ModelWatch(model, model, reported.append)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.zeros(BATCH, TOKENS, dtype=torch.long)).sum().backward()
    half, tokens = 2, BATCH * TOKENS
    assert reported[0]["blocks"]["kept_bytes"] == (LAYERS + 1) * tokens * WIDTH * half // LAYERS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # of a CPU without bf16
def test_what_a_llama_keeps_is_what_its_widths_say(torch: Any) -> None:
    need_module("engines", "transformers")
    transformers: Any = importlib.import_module("transformers")
    hidden, ffn, keys = 64, 224, 16
    shape = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 3, "num_attention_heads": 4}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, num_key_value_heads=1, **shape))
    reported: list[dict[str, Any]] = []
    model_hook.ModelWatch(llama, llama, reported.append)
    with torch.autocast("cpu", torch.bfloat16):
        llama(input_ids=torch.zeros(2, 32, dtype=torch.long))
    seen = reported[0]["blocks"]["kept_bytes"] / (2 * 32)
    saved = load_framework("hf-accelerate").saved
    around = (saved.attention_hidden + saved.mlp_hidden) * hidden + saved.ffn_gated * ffn
    inside = saved.query * hidden + saved.key_value * 2 * keys + saved.value * hidden + saved.heads * 4
    assert seen == pytest.approx(around + inside, rel=0.02)


def test_the_gradients_are_what_they_were(torch: Any, model: Any) -> None:
    batch = torch.arange(BATCH * TOKENS).reshape(BATCH, TOKENS)
    model(batch).sum().backward()
    before = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    model_hook.ModelWatch(model, model, lambda event: None)
    model(batch).sum().backward()
    assert all(torch.equal(each.grad, old) for each, old in zip(model.parameters(), before, strict=True))


def test_a_pass_that_fails_leaves_no_hook_on_the_blocks(torch: Any, model: Any) -> None:
    watch = model_hook.ModelWatch(model, model, lambda event: None)
    with pytest.raises(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a hook that is called after the error
        model(torch.zeros(BATCH, TOKENS))
    assert not any(block._forward_pre_hooks for block in model[1])
    assert watch.kept is not None and watch.kept.context is None


def test_the_longest_sequence_is_noted_until_it_is_asked_for(torch: Any, model: Any) -> None:
    watch = model_hook.ModelWatch(model, model, lambda event: None)
    for tokens in (3, 7, 5):
        model(torch.zeros(BATCH, tokens, dtype=torch.long))
    assert watch.longest == 7


def test_a_pass_for_evaluation_is_not_the_first_of_the_training(torch: Any, model: Any) -> None:
    reported: list[dict[str, Any]] = []
    model_hook.ModelWatch(model, model, reported.append)
    model.eval()
    model(torch.zeros(1, 1, dtype=torch.long))
    assert reported == []
    model.train()
    model(torch.zeros(BATCH, TOKENS, dtype=torch.long))
    assert reported[0]["input"]["shape"] == [BATCH, TOKENS]


def test_of_a_compiled_model_only_the_shape_is_reported(torch: Any, model: Any) -> None:
    [reported] = watched(torch, model, torch.compile(model, backend="eager"), passes=2)
    assert reported["blocks"]["count"] == LAYERS and "kept_bytes" not in reported["blocks"]


def test_a_model_is_found_in_what_wraps_it(torch: Any, model: Any) -> None:
    class PeftModel(torch.nn.Module):  # type: ignore[misc]
        def get_base_model(self) -> Any:
            return model

    class DeepSpeedEngine:
        module = PeftModel()

    assert model_hook.unwrapped(DeepSpeedEngine()) is model
    assert model_hook.unwrapped(torch.compile(model, backend="eager")) is model


def test_frozen_and_sharded_parameters_are_counted(torch: Any, model: Any) -> None:
    model[0].weight.requires_grad_(False)
    found = model_hook.described(model)
    assert found["parameters"] - found["trained"] == WORDS * WIDTH
    sharded = model[2].weight
    sharded.ds_numel, sharded.ds_shape, sharded.data = sharded.numel(), tuple(sharded.shape), torch.empty(0)
    assert model_hook.described(model)["parameters"] == found["parameters"]


def test_of_lists_the_one_with_the_most_parameters_has_the_blocks(torch: Any) -> None:
    nn = torch.nn
    layers = [nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(4, 4) for _ in range(8))}) for _ in range(2)]
    dense = nn.ModuleDict({"mlp": nn.Linear(4, 4)})
    model = nn.ModuleDict({"layers": nn.ModuleList([dense, *layers]), "other": nn.ModuleList([nn.Linear(9, 9)])})
    assert model_hook.repeated_blocks(model) == layers
    assert model_hook.repeated_blocks(nn.Linear(4, 4)) == []


def test_a_config_is_reported_without_what_is_long_or_has_no_value() -> None:
    given = {
        "hidden_size": 8,
        "tie": False,
        "model_type": "llama",
        "dtype": object(),
        "pad": None,
        "text_config": {"vocab_size": 9, "labels": {}},
        "id2label": {str(number): "x" for number in range(1000)},
        "mlp_only_layers": [0, 1],
        "layer_types": ["full"] * 4,
        "chat_template": "x" * 1000,
    }
    kept = {"hidden_size": 8, "tie": False, "model_type": "llama", "text_config": {"vocab_size": 9}}
    assert model_hook.plain_config(given) == {**kept, "mlp_only_layers": [0, 1]}


def test_the_tokens_are_found_among_the_arguments(torch: Any) -> None:
    batch = {"labels": torch.zeros(1, 9), "input_ids": torch.zeros(2, 3)}
    for args, kwargs in (((), batch), ((batch,), {}), ((torch.zeros(2, 3),), {"mask": torch.zeros(1)})):
        found = model_hook.model_input(args, kwargs)
        assert found is not None and found["shape"] == [2, 3]
    assert model_hook.model_input((1, torch.tensor(1.0)), {"x": "y"}) is None
