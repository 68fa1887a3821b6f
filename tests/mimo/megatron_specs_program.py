"""Train Megatron's own classes, specified by the user, in two layouts on CPU ranks; print the losses as JSON."""

from __future__ import annotations

import functools
import json
import warnings
import zlib
from typing import Any

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda

pretend_cuda()
warnings.simplefilter("ignore")

import torch  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.mimo.submodules.vision import VisionModalitySubmodules  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlock  # noqa: E402
from torch import Tensor  # noqa: E402

from tests.mimo.forked_world import run_world  # noqa: E402
from tests.mimo.small_models import LANGUAGE, VISION_LANGUAGE, pair  # noqa: E402
from zenith_mimo.megatron.model import BuildSpec, MegatronModel, StagePlace  # noqa: E402
from zenith_mimo.megatron.support import MegatronSupport  # noqa: E402
from zenith_mimo.megatron.topology import MegatronTopology  # noqa: E402
from zenith_mimo.megatron.trainer import MegatronTrainer  # noqa: E402
from zenith_mimo.optimizer import OptimizerConfig  # noqa: E402
from zenith_mimo.planning.config import ModuleLayout  # noqa: E402
from zenith_mimo.samples import RandomSamples  # noqa: E402

LAYOUTS = {
    "ranks of their own": pair(ModuleLayout(), ModuleLayout(offset=1)),
    "shared ranks": pair(ModuleLayout(dp=2), ModuleLayout(dp=2)),
}
WIDTH, NUM_STEPS, BATCH = LANGUAGE.transformer.hidden_size, 3, 4


def transformer(place: StagePlace) -> Any:
    return TransformerConfig(
        num_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=4,
        tensor_model_parallel_size=place.tp,
        pipeline_model_parallel_size=place.num_stages,
        pipeline_dtype=torch.float32,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="native",
    )


def vision_spec(place: StagePlace) -> ModuleSpec:
    block = {"config": transformer(place), "spec": get_gpt_layer_local_spec(), "pg_collection": place.groups}
    encoders = {"blocks": ModuleSpec(module=TransformerBlock, params=block)}
    return ModuleSpec(
        module=VisionModalitySubmodules, params={"pg_collection": place.groups}, submodules={"encoders": encoders}
    )


def language_spec(place: StagePlace) -> ModuleSpec:
    params = {
        "config": transformer(place),
        "transformer_layer_spec": get_gpt_layer_local_spec(),
        "vocab_size": LANGUAGE.vocab_size,
        "max_sequence_length": LANGUAGE.seq_length,
        "pg_collection": place.groups,
    }
    return ModuleSpec(module=GPTModel, params=params)


def block_inputs(name: str, items: Tensor) -> dict[str, Any]:
    """Give the blocks the patches of all items as one sequence, as wide as they are."""
    wide = torch.nn.functional.pad(items, (0, WIDTH - items.shape[-1])).flatten(0, 1)
    return {"blocks": {"hidden_states": wide.unsqueeze(1), "attention_mask": None}}


def losses(layout_name: str) -> dict[str, Any]:
    specs: dict[str, BuildSpec] = {"vision": vision_spec, "language": language_spec}
    topology = MegatronTopology(LAYOUTS[layout_name])
    model = MegatronModel(specs, topology, MegatronSupport.of_installed(), token_ids={"vision": 0})
    for part in model.parts.values():
        for name, parameter in part.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02 - parameter)
    trainer = MegatronTrainer(
        model, OptimizerConfig(lr=1e-2, eps=1e-2), micro_batch_size=1, global_batch_size=BATCH, item_inputs=block_inputs
    )
    batch = RandomSamples(config=VISION_LANGUAGE, num_samples=BATCH, seed=0, num_items=(1,))
    found = [trainer.step(batch).loss for _ in range(NUM_STEPS)]
    trainer.close()
    return {"losses": found}


if __name__ == "__main__":
    print(json.dumps({name: run_world(2, functools.partial(losses, name))[0]["losses"] for name in LAYOUTS}))
