"""Train a SigLIP tower and a Llama, a billion weights, on one GPU: whole and as two ranks, and compare the curves.

    PYTHONPATH=src:mimo/src python benchmarks/h200_mimo_pair.py --output mimo-pair.json

In bfloat16: one process trains all steps. Two ranks on the same GPU, an encoder's and a language model's, train over
gloo and save on the way; two ranks that share both modules begin with what was saved and repeat the steps after it.
Whether NCCL allows two ranks on one GPU is tried. Passes of each module, an update and a batch are timed alone, next to
what the plan says. Phases that do not fit into --seconds are cut off and say so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.hugging_face import CausalStage, VisionStage
from zenith_mimo.modules import MimoModel, call
from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer
from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.config import LANGUAGE, MimoLayout, ModuleLayout
from zenith_mimo.planning.hugging_face import causal_work, vision_work
from zenith_mimo.planning.job import ENCODER, MimoJob
from zenith_mimo.planning.prediction import predict
from zenith_mimo.planning.timeline import passes_of
from zenith_mimo.preset.device import MEASURED_HUGGING_FACE, gpu_device
from zenith_mimo.preset.job import MimoArguments
from zenith_mimo.samples import Sample, collate
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer
from zenith_tune.describe.cluster_catalog import load_cluster

IMAGE, BATCH, NUM_BATCHES = 0, 8, 4
ITEMS = (2, 1, 3, 0)
"""Images of the samples, round and round."""
OPTIMIZER = OptimizerConfig(lr=2e-4, clip_grad=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The shapes of both modules; 1.1 billion weights."""

    vision_layers: int = 27
    vision_hidden: int = 1152
    vision_ffn: int = 4304
    vision_heads: int = 16
    image: int = 224
    patch: int = 14
    layers: int = 20
    hidden: int = 1536
    ffn: int = 4096
    heads: int = 16
    seq_length: int = 1024
    vocab: int = 32000

    @property
    def patches(self) -> int:
        """Of an image."""
        return (self.image // self.patch) ** 2


SMALL = Sizes(
    vision_layers=2,
    vision_hidden=32,
    vision_ffn=64,
    vision_heads=2,
    image=28,
    layers=2,
    hidden=64,
    ffn=128,
    heads=4,
    seq_length=32,
    vocab=64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One training on one GPU: its ranks, and what it begins with."""

    name: str
    vision: ModuleLayout
    language: ModuleLayout
    micro_batch: int
    backend: str
    begin: int
    end: int
    saves_after: int | None = None

    @property
    def layout(self) -> MimoLayout:
        """Of both modules."""
        return MimoLayout(modules={"vision": self.vision, LANGUAGE: self.language})


def phases(steps: int, more: int, backend: str) -> dict[str, Phase]:
    """Return what is trained; `backend` is what one process can use."""
    whole = Phase(
        name="one process",
        vision=ModuleLayout(),
        language=ModuleLayout(),
        micro_batch=4,
        backend=backend,
        begin=0,
        end=steps + more,
    )
    two = replace(whole, name="two ranks, gloo", language=ModuleLayout(offset=1), backend="gloo", saves_after=steps)
    shared = ModuleLayout(dp=2)
    resumed = replace(
        two,
        name="resumed on shared ranks",
        vision=shared,
        language=shared,
        micro_batch=2,
        begin=steps,
        saves_after=None,
    )
    nccl = replace(two, name="two ranks, nccl", backend="nccl", end=min(steps, 5), saves_after=None)
    found = [whole, two, resumed, *([nccl] if backend == "nccl" else [])]
    return {phase.name: phase for phase in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """One of a few batches, which come again and again, so that the loss must fall."""

    sizes: Sizes
    step: int

    def __len__(self) -> int:
        return BATCH

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample, with the items of one encoder or none."""
        sizes, num = self.sizes, ITEMS[index % len(ITEMS)]
        generator = torch.Generator().manual_seed(self.step % NUM_BATCHES * BATCH + index)
        tokens = torch.randint(IMAGE + 1, sizes.vocab, (sizes.seq_length + 1,), generator=generator)
        tokens[1 : 1 + num * sizes.patches] = IMAGE
        pixels = torch.randn(num, 3, sizes.image, sizes.image, generator=generator)
        items = {} if encoder is None else {encoder: pixels}
        rows = {"vision": num * sizes.patches}
        return Sample(tokens=tokens, is_counted=tokens[1:] != IMAGE, items=items, num_rows=rows)


def make_models(folder: Path, sizes: Sizes, device: str) -> None:
    """Write both models with random weights."""
    import transformers

    torch.manual_seed(0)
    vision = transformers.SiglipVisionConfig(
        hidden_size=sizes.vision_hidden,
        intermediate_size=sizes.vision_ffn,
        num_hidden_layers=sizes.vision_layers,
        num_attention_heads=sizes.vision_heads,
        image_size=sizes.image,
        patch_size=sizes.patch,
        vision_use_head=False,
    )
    language = transformers.LlamaConfig(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads // 2,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.seq_length,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        for name, make, config in (
            ("siglip", transformers.SiglipVisionModel, vision),
            ("llama", transformers.LlamaForCausalLM, language),
        ):
            make(config).to(torch.bfloat16).save_pretrained(folder / name)


def train(phase: Phase, folder: Path, sizes: Sizes, device: str, write: Callable[[dict[str, Any]], None]) -> None:
    """Train a phase on this rank, and write the rows as they come."""
    begin = time.perf_counter()
    topology = Topology(phase.layout, timeout=timedelta(seconds=120))
    builders = {
        "vision": lambda tp, stage, num: VisionStage(folder / "siglip", tp, stage, num, width=sizes.hidden, seed=1),
        LANGUAGE: lambda tp, stage, num: CausalStage(folder / "llama", {"vision": IMAGE}, tp, stage, num),
    }
    model = MimoModel(builders, topology, row_width=sizes.hidden, device=device, dtype=torch.bfloat16)
    trainer = Trainer(
        model,
        get_mimo_optimizer(model, OPTIMIZER),
        micro_batch_size=phase.micro_batch,
        global_batch_size=BATCH,
    )
    if phase.begin:
        load_checkpoint(folder / "saved", trainer)
    found: dict[str, Any] = {
        "iteration": trainer.iteration,
        "parameters": {name: sum(p.numel() for p in part.parameters()) for name, part in model.parts.items()},
        "build_s": round(time.perf_counter() - begin, 2),
    }
    rows = []
    while trainer.iteration < phase.end:
        begin = time.perf_counter()
        done = trainer.step(Images(sizes=sizes, step=trainer.iteration))
        _wait(device)
        step_s = round(time.perf_counter() - begin, 5)
        rows.append({"iteration": trainer.iteration, "loss": done.loss, "grad_norm": done.grad_norm, "step_s": step_s})
        write({**found, "rows": rows})
        if trainer.iteration == phase.saves_after:
            begin = time.perf_counter()
            save_checkpoint(folder / "saved", trainer)
            found["save_s"] = round(time.perf_counter() - begin, 2)
    if device == "cuda":
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if phase.layout.world_size == 1:
        found["modules"] = measured_modules(model, sizes)
        found["update_s"] = timed(trainer.optimizer.step, device)
        found["batch_s"] = timed(
            lambda: [Images(sizes=sizes, step=0).read(at, "vision") for at in range(BATCH)], device
        )
    write({**found, "rows": rows, "is_done": True})
    trainer.close()


def measured_modules(model: MimoModel, sizes: Sizes) -> dict[str, float]:
    """Return the seconds of a micro-batch forward and backward in each module alone."""
    batch = collate([Images(sizes=sizes, step=0).read(index, "vision") for index in range(4)])
    vision: Any = model.parts["vision"]
    language: Any = model.parts[LANGUAGE]
    pixels = batch.items["vision"].to(model.device, model.dtype)

    def run_vision() -> torch.Tensor:
        rows: torch.Tensor = vision.rows(vision.blocks(vision.embed(pixels)))
        rows.sum().backward()
        return rows.detach()

    rows = run_vision()

    def run_language() -> None:
        hidden = call(language.blocks, language.embed(batch.tokens, {"vision": rows}), side={})
        device = hidden.device
        language.loss(hidden, batch.labels.to(device), batch.loss_mask.to(device)).backward()

    return {name: timed(run, model.device) for name, run in (("vision", run_vision), (LANGUAGE, run_language))}


def timed(run: Callable[[], Any], device: str) -> float:
    """Return the median seconds of five runs after one that is not counted."""
    times = []
    for _ in range(6):
        _wait(device)
        begin = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - begin)
    return round(statistics.median(times[1:]), 6)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def predicted(folder: Path, sizes: Sizes, gpu: str) -> dict[str, Any]:
    """Return what the plan says: of a micro-batch in each module, and of the steps."""
    cluster = load_cluster(f"{gpu}x1")
    device = gpu_device(cluster, MimoArguments(), is_low=True, is_sharded=False, measured=MEASURED_HUGGING_FACE)
    found: dict[str, Any] = {}
    for name, num_ranks, share in (("one process", 1, 1.0), ("two ranks, gloo", 2, 0.5)):
        job = MimoJob(
            encoder=vision_work(folder / "siglip", sizes.hidden),
            language=causal_work(folder / "llama", sizes.seq_length),
            num_ranks=num_ranks,
            global_batch=BATCH,
            items=ITEMS,
            device=replace(device, share=share),
        )
        candidate = MimoCandidate.of(
            num_ranks, encoder=(1, 1), language=(1, 1), encoder_ranks=num_ranks - 1, micro_batch=4
        )
        plan = predict(job, candidate)
        found[name] = {"step_s": round(plan.step_s, 5), "memory_gib": round(plan.memory_bytes / 2**30, 2)}
        if num_ranks == 1:
            units = {ENCODER: sum(ITEMS), LANGUAGE: 4}
            passes = {module: passes_of(job, candidate, module, 0) for module in units}
            seconds = {m: passes[m].forward(n).total_s + passes[m].backward(n).total_s for m, n in units.items()}
            found["modules"] = {"vision": round(seconds[ENCODER], 6), LANGUAGE: round(seconds[LANGUAGE], 6)}
    return found


def work(name: str, folder: Path, options: argparse.Namespace) -> None:
    """Run one phase as one rank, which its parent has started."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = SMALL if options.small else Sizes()
    if device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    if name == "make":
        make_models(folder, sizes, device)
        return
    phase = phases(options.steps, options.more, "nccl" if device == "cuda" else "gloo")[name]
    rank, world_size = int(os.environ["RANK"]), phase.layout.world_size
    store = f"file://{folder}/store-{name.replace(' ', '-')}"
    dist.init_process_group(
        phase.backend, init_method=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120)
    )

    def write(found: dict[str, Any]) -> None:
        path = folder / f"{name}-{rank}.json"
        path.with_suffix(".part").write_text(json.dumps(found))
        path.with_suffix(".part").replace(path)

    train(phase, folder, sizes, device, write)
    dist.destroy_process_group()


def run_phase(name: str, num_ranks: int, folder: Path, words: list[str], limit_s: float) -> dict[str, Any]:
    """Start a phase's ranks, and return what they found within the time that is left."""
    command = [sys.executable, __file__, "--worker", name, "--folder", str(folder), *words]
    logs = [folder / f"{name}-{rank}.log" for rank in range(num_ranks)]
    begin, ranks = time.monotonic(), []
    for rank, log in enumerate(logs):
        with log.open("w") as stream:
            env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": "0"}
            ranks.append(subprocess.Popen(command, env=env, stdout=stream, stderr=subprocess.STDOUT))
    try:
        while any(each.poll() is None for each in ranks) and time.monotonic() - begin < limit_s:
            time.sleep(0.05)
            if any(each.poll() for each in ranks):
                time.sleep(5.0)  # the others name the one that failed
                break
    finally:
        codes = [each.poll() for each in ranks]
        for each in ranks:
            each.kill()
            each.wait()
    files = [folder / f"{name}-{rank}.json" for rank in range(num_ranks)]
    found: dict[str, Any] = {"wall_s": round(time.monotonic() - begin, 1), "exit_codes": codes}
    if any(code != 0 for code in codes):
        found["error"] = [log.read_text()[-600:] for log in logs]
    found["ranks"] = [json.loads(path.read_text()) for path in files if path.is_file()]
    return found


def compared(results: dict[str, Any]) -> dict[str, Any]:
    """Return by how much each curve differs from that of one process, and the resumed one from what it resumes."""
    curves = {}
    for name, found in results.items():
        rows = [row for rank in found["ranks"][:1] for row in rank.get("rows", [])]
        curves[name] = {row["iteration"]: row["loss"] for row in rows}
    shown = {}
    for name, curve in curves.items():
        whole = curves["two ranks, gloo" if name == "resumed on shared ranks" else "one process"]
        both = [at for at in curve if at in whole]
        if name != "one process" and both:
            apart = [abs(curve[at] / whole[at] - 1) for at in both]
            median = statistics.median(apart)
            shown[name] = {"steps": len(both), "first": apart[0], "worst": max(apart), "median": median}
    losses = {name: [curve[min(curve)], curve[max(curve)]] for name, curve in curves.items() if curve}
    return {"relative_difference": shown, "first_and_last_loss": losses}


def main() -> None:
    """Run all phases within the time, and write what they found after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("mimo-pair.json"))
    parser.add_argument("--seconds", type=float, default=240.0, help="for all phases; default 240")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--more", type=int, default=5, help="steps after resuming; default 5")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--gpu", default="h200", help="what the plan is made for; default h200")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.folder, options)
        return
    deadline = time.monotonic() + options.seconds
    sizes = SMALL if options.small else Sizes()
    words = ["--steps", str(options.steps), "--more", str(options.more), *(["--small"] if options.small else [])]
    has_gpu = torch.cuda.is_available()
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/h200_mimo_pair.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if has_gpu else "cpu",
        "torch": torch.__version__,
        "sizes": asdict(sizes),
        "phases": {},
    }
    folder = Path(tempfile.mkdtemp())
    try:
        made = run_phase("make", 1, folder, words, deadline - time.monotonic())
        if made["exit_codes"] != [0]:
            raise RuntimeError(made["error"])
        for name, phase in phases(options.steps, options.more, "nccl" if has_gpu else "gloo").items():
            left_s = deadline - time.monotonic()
            result["phases"][name] = run_phase(name, phase.layout.world_size, folder, words, left_s)
            result["compared"] = compared(result["phases"])
            options.output.write_text(json.dumps(result, indent=1))
            print(name, {k: v for k, v in result["phases"][name].items() if k != "ranks"}, flush=True)
        result["predicted"] = predicted(folder, sizes, options.gpu)
    except Exception:
        result["error"] = traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.output.write_text(json.dumps(result, indent=1))
    print(json.dumps({name: result.get(name) for name in ("compared", "predicted", "error")}, indent=1))


if __name__ == "__main__":
    main()
