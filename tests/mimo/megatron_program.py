"""Train layouts with both back-ends on CPU ranks, compare each step with one process in float64, and print it as JSON.

Arguments: which part of the cases (`0/2`), the back-ends (`runtime,megatron`), and names of cases in place of a part.
For a layout and back-end: the largest relative errors of each kind, or why the back-end refuses the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda

pretend_cuda()
warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tests.mimo.comparison import relative_error  # noqa: E402
from tests.mimo.forked_world import run_world  # noqa: E402
from tests.mimo.reference import one_process  # noqa: E402
from tests.mimo.small_models import MODELS, TWO_ENCODERS, VISION_LANGUAGE, pair  # noqa: E402
from zenith_mimo.megatron.example import example_model, megatron_names  # noqa: E402
from zenith_mimo.megatron.support import MegatronSupport  # noqa: E402
from zenith_mimo.megatron.topology import MegatronTopology  # noqa: E402
from zenith_mimo.megatron.trainer import MegatronTrainer  # noqa: E402
from zenith_mimo.modules import MimoModel  # noqa: E402
from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer  # noqa: E402
from zenith_mimo.planning.config import (  # noqa: E402
    MimoConfig,
    MimoLayout,
    ModuleLayout,
)
from zenith_mimo.samples import RandomSamples  # noqa: E402
from zenith_mimo.tensor_parallel import LogicalShard  # noqa: E402
from zenith_mimo.topology import Topology  # noqa: E402
from zenith_mimo.trainer import Trainer  # noqa: E402
from zenith_tune.errors import UsageError  # noqa: E402

NUM_STEPS, BATCH = 2, 8
# Single precision with a large eps: Adam does not make steps of rounding.
OPTIMIZER = OptimizerConfig(lr=1e-2, clip_grad=0.5, eps=1e-2)
EVEN, UNEVEN = (1,), (2, 1, 3, 0, 0, 0, 1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A layout with the model and the samples that it is trained on."""

    layout: MimoLayout
    micro_batch: int = 1
    items: tuple[int, ...] = UNEVEN
    config: MimoConfig = VISION_LANGUAGE
    is_sharded: bool = False
    seed: int = 0


def stages_of(config: MimoConfig, num_layers: int) -> MimoConfig:
    """Return the model with that many layers of the language model: Megatron's stages are all alike."""
    transformer = dataclasses.replace(config.language.transformer, num_layers=num_layers)
    return dataclasses.replace(config, language=dataclasses.replace(config.language, transformer=transformer))


TWO_LAYERS = stages_of(VISION_LANGUAGE, 2)
THREE = {"vision": ModuleLayout(), "audio": ModuleLayout(offset=1), "language": ModuleLayout(tp=2, offset=2)}
RECOMPUTED = dataclasses.replace(TWO_LAYERS, recompute=frozenset({"vision", "language"}))
CASES = {
    "ranks of their own": Case(layout=pair(ModuleLayout(), ModuleLayout(offset=1)), micro_batch=2),
    "llm pp3": Case(layout=pair(ModuleLayout(), ModuleLayout(pp=3, offset=1))),
    "tp2 to pp2": Case(layout=pair(ModuleLayout(tp=2), ModuleLayout(pp=2, offset=2)), config=TWO_LAYERS),
    "pp2 to pp2, recomputed": Case(layout=pair(ModuleLayout(pp=2), ModuleLayout(pp=2, offset=2)), config=RECOMPUTED),
    "frozen tower, pp2 to pp2": Case(
        layout=pair(ModuleLayout(pp=2), ModuleLayout(pp=2, offset=2)), config=stages_of(MODELS["frozen tower"], 2)
    ),
    "dp2 to dp2, sharded": Case(layout=pair(ModuleLayout(dp=2), ModuleLayout(dp=2, offset=2)), is_sharded=True),
    "even fan-in": Case(layout=pair(ModuleLayout(dp=2), ModuleLayout(tp=2, offset=2)), items=EVEN, micro_batch=2),
    "even fan-out": Case(layout=pair(ModuleLayout(tp=2), ModuleLayout(dp=2, offset=2)), items=EVEN),
    "uneven fan-in": Case(layout=pair(ModuleLayout(dp=2), ModuleLayout(tp=2, offset=2)), micro_batch=2),
    "uneven fan-out": Case(layout=pair(ModuleLayout(tp=2), ModuleLayout(dp=2, offset=2))),
    "shared ranks": Case(layout=pair(ModuleLayout(tp=2, dp=2), ModuleLayout(tp=2, dp=2)), micro_batch=2),
    "shared ranks, dp4 to tp2 dp2": Case(
        layout=pair(ModuleLayout(dp=4), ModuleLayout(tp=2, dp=2)), items=EVEN, micro_batch=2
    ),
    "two encoders": Case(layout=MimoLayout(modules=THREE), config=TWO_ENCODERS, micro_batch=2),
    "frozen language, shared ranks": Case(
        layout=pair(ModuleLayout(dp=2), ModuleLayout(dp=2)), config=MODELS["frozen language"], micro_batch=2
    ),
}
Steps = list[dict[str, Any]]


def samples(case: Case, step: int) -> RandomSamples:
    return RandomSamples(config=case.config, num_samples=BATCH, seed=step, num_items=case.items)


@dataclasses.dataclass(frozen=True)
class OwnRuntime:
    """The runtime's trainer, and what this rank holds of the whole model's tensors."""

    trainer: Trainer

    @classmethod
    def make(cls, case: Case, optimizer: OptimizerConfig) -> OwnRuntime:
        model = MimoModel.of(case.config, Topology(case.layout))
        made = get_mimo_optimizer(model, optimizer)
        return cls(Trainer(model, made, micro_batch_size=case.micro_batch, global_batch_size=BATCH))

    def grads(self) -> Iterator[tuple[str, Tensor, LogicalShard]]:
        for module, optimizer in self.trainer.optimizer.active.items():
            for piece in optimizer.pieces:
                yield f"{module}/{piece.name}", optimizer.grad_of(piece), piece.shard

    def weights(self) -> Iterator[tuple[str, Tensor, LogicalShard]]:
        for module, optimizer in self.trainer.optimizer.active.items():
            for name, parameter in optimizer.parameters.items():
                yield f"{module}/{name}", parameter.detach(), parameter.shard


@dataclasses.dataclass(frozen=True)
class Megatron:
    """Megatron's trainer, and what this rank holds under the names that the whole model's tensors have here."""

    trainer: MegatronTrainer
    case: Case

    @classmethod
    def make(cls, case: Case, optimizer: OptimizerConfig) -> Megatron:
        support = MegatronSupport.of_installed()
        model = example_model(case.config, MegatronTopology(case.layout), support)
        trainer = MegatronTrainer(model, optimizer, micro_batch_size=case.micro_batch, global_batch_size=BATCH)
        return cls(trainer, case)

    def weights(self) -> Iterator[tuple[str, Tensor, LogicalShard]]:
        for key, parameter, shard in self._parameters():
            yield key, parameter.detach(), shard

    def grads(self) -> Iterator[tuple[str, Tensor, LogicalShard]]:
        for key, parameter, shard in self._parameters():
            # With the optimizer's state sharded, a rank's gradients are whole only where it updates.
            if parameter.requires_grad and not self.case.is_sharded:
                yield key, parameter.main_grad, shard

    def _parameters(self) -> Iterator[tuple[str, Any, LogicalShard]]:
        topology = self.trainer.model.topology
        for module, part in self.trainer.model.parts.items():
            theirs = dict(part.module.named_parameters())
            for name, (there, own) in megatron_names(self.case.config, module, topology).items():
                yield f"{module}/{name}", theirs[there], own.shard


BACK_ENDS: dict[str, Callable[[Case, OptimizerConfig], OwnRuntime | Megatron]] = {
    "runtime": OwnRuntime.make,
    "megatron": Megatron.make,
}


def compared(case: Case, back_end: str, reference: Steps) -> dict[str, Any]:
    """Train on this rank, and return the largest relative error of each kind, and what all ranks should agree on."""
    optimizer = dataclasses.replace(OPTIMIZER, use_distributed_optimizer=case.is_sharded)
    run = BACK_ENDS[back_end](case, optimizer)
    errors: dict[str, float] = {}
    alike = []
    for step, expected in enumerate(reference):
        loss, num_tokens = run.trainer.accumulate(samples(case, step))
        found = {"loss": relative_error(loss, expected["loss"]), "grads": worst(run.grads(), expected["grads"])}
        success, norm, _ = run.trainer.optimizer.step()
        assert success
        found |= {"norm": relative_error(norm, expected["norm"]), "weights": worst(run.weights(), expected["weights"])}
        alike.append([loss, num_tokens, norm])
        errors |= {kind: max(error, errors.get(kind, 0.0)) for kind, error in found.items()}
    run.trainer.close()
    return {"errors": errors, "alike": alike}


def worst(found: Iterator[tuple[str, Tensor, LogicalShard]], expected: Mapping[str, Tensor]) -> float:
    return max((relative_error(tensor, shard.cut(expected[key])) for key, tensor, shard in found), default=0.0)


def main() -> None:
    part, _, parts = sys.argv[1].partition("/")
    back_ends, names = sys.argv[2].split(","), sys.argv[3:] or list(CASES)[int(part) :: int(parts)]
    support = MegatronSupport.of_installed()
    results: dict[str, dict[str, Any]] = {"version": {"megatron": support.version}}
    for name in names:
        case = CASES[name]
        results[name] = {}
        reference = one_process(
            case.config, torch.float64, NUM_STEPS, OPTIMIZER, samples=functools.partial(samples, case)
        )
        for back_end in back_ends:
            try:
                if back_end == "megatron":
                    support.check(case.layout, has_even_items=len(set(case.items)) == 1)
            except UsageError as error:
                results[name][back_end] = {"refused": str(error)}
                continue
            ranks = run_world(case.layout.world_size, functools.partial(compared, case, back_end, reference))
            errors = {kind: max(rank["errors"][kind] for rank in ranks) for kind in ranks[0]["errors"]}
            is_alike = all(rank["alike"] == ranks[0]["alike"] for rank in ranks)
            results[name][back_end] = {"errors": errors, "is_alike": is_alike}
            print(name, back_end, results[name][back_end], file=sys.stderr, flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
