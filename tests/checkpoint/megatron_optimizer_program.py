"""A small GPT that Megatron Core trains on CPUs, saves with its optimizer, and trains further in another layout.

The first ranks train three steps, save in every format, and train three steps more; what was saved is converted, and
ranks of another layout load that by Megatron's own code and train the same three steps. Their losses are written side
by side.
"""

from __future__ import annotations

import argparse
import functools
import json
import queue
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.megatron_core import pretrain_gpt as engine
from zenith_checkpoint.convert import Target, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.output_place import Format
from zenith_mimo.local_ranks import run_ranks

from megatron.core import dist_checkpointing  # isort: skip
from megatron.core import parallel_state as ps  # isort: skip
from megatron.core.dist_checkpointing.strategies import filesystem_async  # isort: skip
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # isort: skip
from megatron.core.models.gpt import GPTModel  # isort: skip
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # isort: skip
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # isort: skip
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # isort: skip
from megatron.core.pipeline_parallel import get_forward_backward_func  # isort: skip
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # isort: skip
from megatron.core.transformer.moe import moe_utils  # isort: skip

moe_utils.te_general_gemm = None  # not set by 0.16 without Transformer Engine, and asked for nevertheless

_set_states = DistributedOptimizer._set_main_param_and_optimizer_states


def _with_step(self: Any, model_param: Any, tensors: dict[str, Any]) -> None:
    """Set the states of a parameter; of torch's Adam a step is one, for which 0.16 gives all parameters one tensor."""
    group, order = self.model_param_group_index_map[model_param]
    states = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
    states["step"] = states["step"].clone()
    _set_states(self, model_param, {"step": states["step"], **tensors})


DistributedOptimizer._set_main_param_and_optimizer_states = _with_step

BATCH, STEPS, VOCAB, LAYERS = 2, 3, 128, 4
SHARDED = ("fully_reshardable", "dp_reshardable")


class Trainer:
    """One rank of a layout."""

    def __init__(self, options: argparse.Namespace, layout: str, *, sharded: bool) -> None:
        self.tp, self.pp, self.ep = map(int, layout.split(","))
        self.options, self.sharded = options, sharded
        ps.destroy_model_parallel()
        ps.initialize_model_parallel(self.tp, self.pp, expert_model_parallel_size=self.ep)
        model_parallel_cuda_manual_seed(1, force_reset_rng=True)
        self.dp = ps.get_data_parallel_world_size()
        self.dtype = torch.bfloat16 if options.bf16 else torch.float32
        words = f"--num-layers {LAYERS} --tensor-model-parallel-size {self.tp} --vocab-size {VOCAB} "
        words += f"--pipeline-model-parallel-size {self.pp} --hidden-size {options.hidden} --global-batch-size {BATCH}"
        self.settings = engine.read_options(words.split())
        config = replace(
            engine.transformer_config(self.settings),
            num_query_groups=2,
            ffn_hidden_size=40,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            add_bias_linear=False,
            bias_activation_fusion=False,
            num_moe_experts=options.experts or None,
            moe_router_topk=2,
            moe_token_dispatcher_type="allgather",
            moe_router_load_balancing_type="none",
            expert_model_parallel_size=self.ep,
            bf16=options.bf16,
            params_dtype=self.dtype,
            pipeline_dtype=self.dtype,
        )
        torch.manual_seed(5 + dist.get_rank())
        module = GPTModel(
            config,
            get_gpt_layer_local_spec(num_experts=options.experts or None, moe_grouped_gemm=False),
            vocab_size=VOCAB,
            max_sequence_length=self.settings.max_position_embeddings,
            pre_process=ps.is_pipeline_first_stage(),
            post_process=ps.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=options.tied,
        )
        engine.set_weights(module)
        split = DistributedDataParallelConfig(
            use_distributed_optimizer=sharded,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=options.bucket > 0,
            bucket_size=options.bucket or None,
        )
        self.model = DistributedDataParallel(config, split, module.to(self.dtype))
        settings = OptimizerConfig(
            lr=1e-2, weight_decay=0.1, bf16=options.bf16, params_dtype=self.dtype, use_distributed_optimizer=sharded
        )
        self.optimizer = get_megatron_optimizer(settings, [self.model])

    def train(self, first: int) -> list[float]:
        """Take some steps, and return their losses on the last stage."""
        num_micro = BATCH // self.dp
        data = engine.micro_batches(self.settings)
        for _ in range(first * num_micro):
            next(data)
        losses = []
        for _ in range(STEPS):
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            reports = get_forward_backward_func()(
                forward_step_func=engine.forward_step,
                data_iterator=data,
                model=self.model,
                num_microbatches=num_micro,
                seq_length=self.settings.seq_length,
                micro_batch_size=1,
                forward_only=False,
            )
            self.optimizer.step()
            if ps.is_pipeline_last_stage():
                losses.append(engine.batch_loss(reports))
        return losses

    @property
    def rank_folder(self) -> str:
        """The folder of this rank in the legacy format."""
        name = f"mp_rank_{ps.get_tensor_model_parallel_rank():02d}"
        name += f"_{ps.get_pipeline_model_parallel_rank():03d}" if self.pp > 1 else ""
        return name + (f"_{ps.get_expert_model_parallel_rank():03d}" if self.ep > 1 else "")

    def beside(self) -> dict[str, Any]:
        """Return what Megatron-LM saves beside the model and the optimizer."""
        args = argparse.Namespace(
            num_attention_heads=4,
            num_query_groups=2,
            tensor_model_parallel_size=self.tp,
            pipeline_model_parallel_size=self.pp,
            expert_model_parallel_size=self.ep,
            expert_tensor_parallel_size=self.tp,
            data_parallel_size=self.dp,
            use_distributed_optimizer=self.sharded,
            overlap_grad_reduce=self.options.bucket > 0,
            ddp_bucket_size=self.options.bucket or None,
            accumulate_allreduce_grads_in_fp32=True,
            bf16=self.options.bf16,
            transformer_impl="local",
            padded_vocab_size=VOCAB,
            make_vocab_size_divisible_by=8,
        )
        scheduler = {"max_lr": 1e-2, "num_steps": STEPS * BATCH}
        return {"args": args, "checkpoint_version": 3.0, "iteration": STEPS, "opt_param_scheduler": scheduler}

    def save_legacy(self, folder: Path) -> None:
        """Save as Megatron-LM does with --ckpt-format torch."""
        place = folder / f"iter_{STEPS:07d}" / self.rank_folder
        place.mkdir(parents=True, exist_ok=True)
        content = {
            "model": self.model.module.state_dict_for_save_checkpoint(),
            "optimizer": self.optimizer.state_dict(),
        }
        if ps.get_expert_data_parallel_rank() == 0:
            torch.save({**self.beside(), **content}, place / "model_optim_rng.pt")
        if self.sharded:
            self.optimizer.save_parameter_state(str(place / "distrib_optim.pt"))
        (folder / "latest_checkpointed_iteration.txt").write_text(str(STEPS))

    def metadata(self, kind: str | None) -> dict[str, Any]:
        """Return what Megatron-LM hands to the model and the optimizer as it saves."""
        named = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
        return {**named, **({"distrib_optim_sharding_type": kind} if kind else {})}

    def state(self, metadata: dict[str, Any], *, is_loading: bool) -> dict[str, Any]:
        """Return the sharded state_dict of the model and its optimizer."""
        groups = {**metadata, "dp_cp_group": ps.get_data_parallel_group(with_context_parallel=True)}
        model = self.model.module.sharded_state_dict(metadata=groups)
        return {
            "model": model,
            "optimizer": self.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=groups),
        }

    def save_dist(self, folder: Path, kind: str | None) -> None:
        """Save as Megatron-LM does by default."""
        # Its own is a process that would outlive this one; what is written at once needs no queue between processes.
        filesystem_async._results_queue = queue.Queue()
        folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        metadata = self.metadata(kind)
        state = {**self.state(metadata, is_loading=False), **self.beside()}
        dist_checkpointing.save(state, str(folder), content_metadata=metadata)
        dist.barrier()

    @torch.no_grad()
    def load_legacy(self, folder: Path) -> None:
        """Load as Megatron-LM does with --ckpt-format torch."""
        place = folder / f"iter_{STEPS:07d}" / self.rank_folder
        loaded = torch.load(place / "model_optim_rng.pt", weights_only=False)
        self.model.module.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        if self.sharded:
            self.optimizer.load_parameter_state(str(place / "distrib_optim.pt"))
        assert loaded["opt_param_scheduler"]["num_steps"] == STEPS * BATCH

    @torch.no_grad()
    def load_dist(self, folder: Path) -> None:
        """Load as Megatron-LM does: in the way that the checkpoint names."""
        place = folder / f"iter_{STEPS:07d}"
        if self.sharded:  # torch's Adam has no step to save before its first
            for each in self.optimizer.chained_optimizers:
                each._init_optimizer_states_with_dummy_values()
        metadata = dist_checkpointing.load_content_metadata(str(place))
        state = self.state(metadata, is_loading=True)
        loaded, missing, unexpected = dist_checkpointing.load(state, str(place), strict="return_all")
        assert not missing and all("_extra_state" in key for key in unexpected), (missing, unexpected)
        self.model.module.load_state_dict(loaded["model"], strict=False)
        self.optimizer.load_state_dict(loaded["optimizer"])
        assert loaded["opt_param_scheduler"]["num_steps"] == STEPS * BATCH


def note(options: argparse.Namespace, name: str, losses: list[float]) -> None:
    if losses and dist.get_rank() == dist.get_world_size() - 1:
        (options.folder / f"losses-{name}.json").write_text(json.dumps(losses))


def first_run(options: argparse.Namespace, *, sharded: bool) -> None:
    trainer = Trainer(options, options.source, sharded=sharded)
    trainer.train(0)
    kind = "sharded" if sharded else "plain"
    trainer.save_legacy(options.folder / f"{kind}-legacy")
    # With several buckets, 0.16 cuts the parameters of the first kind at wrong places, which is refused.
    kinds = SHARDED[1:] if options.bucket else SHARDED
    for each in kinds if sharded else (None,):
        trainer.save_dist(options.folder / f"{kind}-{each or 'dist'}" / f"iter_{STEPS:07d}", each)
    note(options, f"{kind}-expected", trainer.train(STEPS))


def convert(options: argparse.Namespace) -> None:
    tp, pp, ep = map(int, options.target.split(","))
    for folder in sorted(options.folder.glob("*-*")):
        if not folder.is_dir():
            continue
        for kind in (Format.MEGATRON,) if options.bucket else (Format.MEGATRON, Format.TORCH_DIST):
            target = Target(tp=tp, pp=pp, ep=ep, format=kind, with_optimizer=True)
            place = options.folder / f"{folder.name}-to-{kind.value}"
            written = reshard(folder, place, replace(target, vocab_divisor=8), ModelShape(vocab=VOCAB))
            assert written.has_optimizer, written.notes


def next_run(options: argparse.Namespace) -> None:
    fresh = Trainer(options, options.target, sharded=False)
    folder = options.folder / "plain-legacy-to-megatron" / f"iter_{STEPS:07d}" / fresh.rank_folder
    fresh.model.module.load_state_dict(torch.load(folder / "model_optim_rng.pt", weights_only=False)["model"])
    fresh.optimizer.reload_model_params()
    note(options, "fresh", fresh.train(STEPS))
    for folder in sorted(options.folder.glob("*-to-*")):
        if not folder.is_dir():
            continue
        trainer = Trainer(options, options.target, sharded=folder.name.startswith("sharded"))
        if folder.name.endswith("megatron"):
            trainer.load_legacy(folder)
        else:
            trainer.load_dist(folder)
        note(options, folder.name, trainer.train(STEPS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--source", default="2,1,1", help="TP, PP and EP")
    parser.add_argument("--target", default="1,2,1")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--bucket", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--only", choices=["save"])
    options = parser.parse_args()
    start = time.perf_counter()
    work = [
        functools.partial(first_run, options, sharded=False),
        functools.partial(first_run, options, sharded=True),
    ]
    for each in work:
        if any(codes := run_ranks(options.world, each, grace_s=10)):
            raise SystemExit(f"error: the first run ended with {codes}")
    if options.only:
        return
    convert(options)
    if any(codes := run_ranks(options.world, functools.partial(next_run, options), grace_s=10)):
        raise SystemExit(f"error: the next run ended with {codes}")
    print(f"{time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
