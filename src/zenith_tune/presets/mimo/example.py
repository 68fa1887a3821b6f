"""Commands that run examples/mimo_train.py: its sizes, its ranks and its options for a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.mimo.model_config import EncoderConfig, LanguageConfig, TransformerConfig
from zenith_tune.mimo.work import ModuleWork, encoder_work, language_work
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob
from zenith_tune.presets.launched_gpus import started_gpus
from zenith_tune.presets.mimo.job import MimoOverrides, ReadCommand, checked_ranks, read_counts
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params, Value

PROGRAM = "mimo_train.py"
DEFAULTS = {
    **dict.fromkeys(("encoder-tp", "encoder-dp", "encoder-pp", "llm-tp", "llm-pp", "llm-dp", "micro-batch-size"), 1),
    "global-batch-size": 16,
    "encoder-layers": 4,
    "encoder-hidden": 32,
    "encoder-heads": 4,
    "patches": 4,
    "patch-size": 12,
    "llm-layers": 6,
    "llm-hidden": 64,
    "llm-heads": 4,
    "seq-length": 32,
    "vocab-size": 256,
}
"""The example's own, which a test compares."""
IMAGES = "2,1,3,0"
GUESSED_FLOPS = 1e10
"""Of one CPU rank on small matrices: the ranking changes with it, and trials correct it."""
CPU_LINK = LinkSpec(bytes_per_s=1e9, latency_s=1e-3)
"""Stated, not fitted: messages between processes of one machine."""


def read_example(line: ParsedCommand, given: MimoOverrides) -> ReadCommand:
    """Read a command of the example."""
    args = MegatronArgs(line)
    sizes = {name: args.count(f"--{name}") or default for name, default in DEFAULTS.items()}
    own = _own_point(args, sizes)
    own_ranks = int(own["encoder_ranks"]) + sizes["llm-tp"] * sizes["llm-pp"] * sizes["llm-dp"]
    num_ranks = given.n_gpus or started_gpus(line.text) or own_ranks
    notes = () if given.device_flops else (f"the plan guesses {GUESSED_FLOPS:.0e} FLOP/s a rank; trials correct it",)
    encoder = EncoderConfig(
        transformer=_transformer(sizes, "encoder"),
        patch_size=sizes["patch-size"],
        patches_per_item=sizes["patches"],
        token_id=0,
    )
    language = LanguageConfig(
        transformer=_transformer(sizes, "llm"), vocab_size=sizes["vocab-size"], seq_length=sizes["seq-length"]
    )
    works = _trained(line, encoder_work(encoder, sizes["llm-hidden"]), language_work(language))
    if by_megatron := args.text("--backend") == "megatron":
        works = _even_stages(works[0]), _even_stages(works[1])
    # In bfloat16 a weight has 2 bytes, its gradient 4, and the weight and moments of single precision 12.
    is_low = line.has("--bf16")
    device = MimoDevice(
        flops_per_s=given.device_flops or GUESSED_FLOPS,
        fast_link=CPU_LINK,
        link=CPU_LINK,
        memory_bytes=math.inf if given.memory_gib is None else given.memory_gib * 2**30,
        number_bytes=2 if is_low else 4,
        state_bytes=18.0 if is_low else 16.0,
        sharded_bytes=(12.0 if is_low else 8.0) if line.has("--use-distributed-optimizer") else 0.0,
    )
    job = MimoJob(
        encoder=works[0],
        language=works[1],
        num_ranks=checked_ranks(num_ranks),
        global_batch=sizes["global-batch-size"],
        items=given.images or read_counts("--images", args.text("--images") or IMAGES, ","),
        device=device,
        # Megatron joins the rows of several lanes, and cuts them on shared ranks, in equal parts.
        can_join_uneven=not by_megatron,
    )
    return ReadCommand(
        job=job,
        seq_length=sizes["seq-length"],
        options=example_options,
        switches=example_switches,
        own=own,
        notes=notes,
    )


def _trained(line: ParsedCommand, encoder: ModuleWork, language: ModuleWork) -> tuple[ModuleWork, ModuleWork]:
    """Return the works with what is frozen: the tower, whose projector still learns, and the language model."""
    if line.has("--freeze-vit"):
        still = {"is_trained": False, "passes_gradient": False}
        layer, first = replace(encoder.layer, **still), replace(encoder.first, **still)
        encoder = replace(encoder, layer=layer, first=first, last=replace(encoder.last, passes_gradient=False))
    if line.has("--freeze-lm"):
        parts = {name: replace(getattr(language, name), is_trained=False) for name in ("first", "layer", "last")}
        language = replace(language, **parts)
    return encoder, language


def _even_stages(work: ModuleWork) -> ModuleWork:
    """Return a module whose stages must have the same number of layers, as Megatron's have."""
    return replace(work, depths=(("the layers", work.num_layers),))


def example_options(candidate: MimoCandidate) -> Mapping[str, Value]:
    """Return the options of a layout that take a value."""
    modules = {"encoder": candidate.encoder, "llm": candidate.language}
    degrees = {f"--{name}-{axis}": getattr(of, axis) for name, of in modules.items() for axis in ("tp", "pp", "dp")}
    return {**degrees, "--llm-offset": candidate.language.offset, "--micro-batch-size": candidate.micro_batch}


def example_switches(candidate: MimoCandidate) -> Mapping[str, bool]:
    """Return the switches of a layout."""
    return {"--encoder-recompute": candidate.encoder_recompute, "--llm-recompute": candidate.language_recompute}


def _own_point(args: MegatronArgs, sizes: Mapping[str, int]) -> Params:
    encoder_size = sizes["encoder-tp"] * sizes["encoder-pp"] * sizes["encoder-dp"]
    offset = args.count("--llm-offset", least=0)
    return {
        "encoder_ranks": encoder_size if offset is None else offset,
        "encoder_tp": sizes["encoder-tp"],
        "encoder_pp": sizes["encoder-pp"],
        "llm_tp": sizes["llm-tp"],
        "llm_pp": sizes["llm-pp"],
        "mbs": sizes["micro-batch-size"],
        "encoder_recompute": args.has("--encoder-recompute"),
        "llm_recompute": args.has("--llm-recompute"),
    }


def _transformer(sizes: Mapping[str, int], name: str) -> TransformerConfig:
    layers, hidden, heads = (sizes[f"{name}-{what}"] for what in ("layers", "hidden", "heads"))
    return TransformerConfig(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=4 * hidden)
