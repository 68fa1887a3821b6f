"""GPT-OSS as it is published, in MXFP4, is read as transformers reads it where it dequantises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.shard_files import need_torch
from tests.checkpoint.test_hf_names import BASE, MODELS, logits
from tests.requirements import need_module
from zenith_checkpoint.convert import Names, Target, merge, reshard
from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.mxfp4 import dequantized
from zenith_checkpoint.output_place import Format
from zenith_checkpoint.tensors import StoredTensor
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError

pytestmark = pytest.mark.slow  # transformers takes ten seconds to load
SIZES = {**BASE, **MODELS["gpt_oss"], "hidden_size": 64, "intermediate_size": 96}
STEPS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def quantized(weight: Any) -> tuple[Any, Any]:
    """Return the blocks and scales of a packed projection [experts, inputs, outputs]: the nearest value of each."""
    torch = need_torch()
    rows = weight.float().transpose(1, 2)
    groups = rows.reshape(*rows.shape[:2], -1, 32)
    exponents = groups.abs().amax(-1).log2().floor() - 2
    scaled = groups / 2.0 ** exponents[..., None]
    codes = (scaled.abs()[..., None] - torch.tensor(STEPS)).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8), (exponents + 127).to(torch.uint8)


def publish(folder: Path, **changes: Any) -> None:
    """Save a small GPT-OSS as it is published; a change of None leaves a tensor out."""
    torch = need_torch()
    need_module("checkpoint", "transformers")
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    model = make(AutoConfig.for_model("gpt_oss", **SIZES)).to(torch.bfloat16)
    tensors: dict[str, Any] = {}
    for name, weight in model.state_dict().items():
        value = (torch.randn(weight.shape) * 0.3 + 0.1).bfloat16()
        if name.endswith(("gate_up_proj", "down_proj")):
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = quantized(value)
        else:
            tensors[name] = value
    for ending, change in changes.items():
        (name,) = (each for each in tensors if each.startswith("model.layers.0.") and each.endswith(ending))
        tensors |= {name: change(tensors[name])}
    folder.mkdir()
    save_file(
        {name: each.contiguous() for name, each in tensors.items() if each is not None}, folder / "model.safetensors"
    )
    config = {**model.config.to_dict(), "dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="bfloat16")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    return model.eval()


def computed(model: Any) -> Any:
    """Return the logits by products in fp32, as not every CPU has those of bf16."""
    return logits(model.float())


@pytest.mark.parametrize("kind", [Format.MEGATRON, Format.TORCH_DIST])
def test_the_published_weights_compute_the_same_in_bf16_after_megatron(tmp_path: Path, kind: Format) -> None:
    torch = need_torch()
    publish(tmp_path / "hf")
    # A tensor rank's 48 columns of a down-projection end within a block of 32.
    ep = 2 if kind is Format.MEGATRON else 1
    reshard(tmp_path / "hf", tmp_path / "new", Target(tp=2, pp=1, ep=ep, format=kind))
    config = tmp_path / "hf" / "config.json"
    merge(
        tmp_path / "new", tmp_path / "back", ModelShape.of_model(load_model(str(config))), names=Names.HF, config=config
    )
    found, expected = loaded(tmp_path / "back"), loaded(tmp_path / "hf")
    assert {each.dtype for each in found.state_dict().values()} == {torch.bfloat16}
    for name, weight in expected.state_dict().items():
        assert found.state_dict()[name].equal(weight), name
    assert computed(found).equal(computed(expected)) and computed(found).std() > 0.1


def test_merged_as_they_are_the_weights_stay_in_mxfp4_and_with_names_they_are_bf16(tmp_path: Path) -> None:
    publish(tmp_path / "hf")
    from safetensors.torch import load_file

    merge(tmp_path / "hf", tmp_path / "same.safetensors")
    before, same = (load_file(path) for path in (tmp_path / "hf" / "model.safetensors", tmp_path / "same.safetensors"))
    assert before.keys() == same.keys() and all(each.equal(same[name]) for name, each in before.items())
    merge(tmp_path / "hf", tmp_path / "dense", names=Names.HF)
    assert computed(loaded(tmp_path / "dense")).equal(computed(loaded(tmp_path / "hf")))


def test_every_value_and_scale_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    torch = need_torch()
    need_module("checkpoint", "transformers")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    bytes_ = np.arange(256, dtype=np.uint8)
    blocks = np.tile(bytes_, 256).reshape(1, 256, 16, 16)
    scales = np.repeat(bytes_, 16).reshape(1, 256, 16)
    stored = [
        StoredTensor(name=name, key_parts=(1,), path=tmp_path, data=LazyTensor.of(torch.from_numpy(array)))
        for name, array in (("blocks", blocks), ("scales", scales))
    ]
    (data,) = dequantized(*stored, row_step=1)
    expected = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))[0].T
    assert torch.equal(data.read(), expected)
    assert torch.equal(data.read_box((slice(7, 90), slice(33, 170))), expected[7:90, 33:170])


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("gate_up_proj_scales", lambda scales: None),
        ("down_proj_blocks", lambda blocks: None),
        ("down_proj_scales", lambda scales: scales[:, 1:]),
        ("gate_up_proj_blocks", lambda blocks: blocks[..., :8]),
        ("down_proj_blocks", lambda blocks: blocks.float()),
        ("gate_up_proj_scales", lambda scales: scales.reshape(-1)),
    ],
)
def test_blocks_without_their_scales_are_refused(tmp_path: Path, ending: str, change: Any) -> None:
    publish(tmp_path / "hf", **{ending: change})
    with pytest.raises(UsageError) as error:
        reshard(tmp_path / "hf", tmp_path / "new", Target(tp=1, pp=1))
    assert f"model.layers.0.mlp.experts.{ending.rpartition('_')[0]}" in str(error.value)
    assert not (tmp_path / "new").exists()
