"""Commands that run examples/mimo_train.py: its sizes, its ranks and its options for a layout."""

from __future__ import annotations

import math
from collections.abc import Mapping

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.mimo.model_config import EncoderConfig, LanguageConfig, TransformerConfig
from zenith_tune.mimo.model_work import encoder_work, language_work
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoDevice, MimoJob
from zenith_tune.presets.launched_gpus import started_gpus
from zenith_tune.presets.mimo.job import MimoOverrides, ReadCommand, checked_ranks
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
"""Of one CPU rank on small matrices, until the first trials have measured it: the ranking changes with it."""
CPU_LINK = LinkSpec(bytes_per_s=1e9, latency_s=1e-3)
"""Between processes by gloo: sums over 2 and 4 ranks took 2.5 and 6 ms on two busy cores (2026-11-15)."""
STEP_S = 40e-3
"""The optimizer and the agreements of all ranks: what was left of steps on shared ranks there."""


def read_example(line: ParsedCommand, given: MimoOverrides) -> ReadCommand:
    """Read a command of the example."""
    args = MegatronArgs(line)
    sizes = {name: args.count(f"--{name}") or default for name, default in DEFAULTS.items()}
    own = _own_point(args, sizes)
    num_ranks = given.n_gpus or started_gpus(line.text) or _own_ranks(sizes, own)
    flops, notes = _flops(args, given)
    has_sharding = line.has("--use-distributed-optimizer")
    device = MimoDevice(
        flops_per_s=flops,
        tensor_link=CPU_LINK,
        link=CPU_LINK,
        memory_bytes=math.inf if given.memory_gib is None else given.memory_gib * 2**30,
        sharded_bytes=8.0 if has_sharding else 0.0,
        step_s=STEP_S,
        is_known=args.has("--device-flops"),
    )
    job = MimoJob(
        encoder=encoder_work(_encoder(sizes), sizes["llm-hidden"]),
        language=language_work(_language(sizes)),
        num_ranks=checked_ranks(num_ranks),
        global_batch=sizes["global-batch-size"],
        items=_images(args),
        device=device,
    )
    return ReadCommand(
        job=job,
        seq_length=sizes["seq-length"],
        options=example_options,
        switches=example_switches,
        own=own,
        notes=notes,
        measures=not args.has("--device-flops"),
    )


def example_options(at: MimoCandidate) -> Mapping[str, Value]:
    """Return the options of a layout that take a value."""
    modules = {"encoder": at.encoder, "llm": at.language}
    degrees = {f"--{name}-{axis}": getattr(of, axis) for name, of in modules.items() for axis in ("tp", "pp", "dp")}
    return {**degrees, "--llm-offset": at.language.offset, "--micro-batch-size": at.micro_batch}


def example_switches(at: MimoCandidate) -> Mapping[str, bool]:
    """Return the switches of a layout."""
    return {"--encoder-recompute": at.encoder_recompute, "--llm-recompute": at.language_recompute}


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


def _own_ranks(sizes: Mapping[str, int], own: Params) -> int:
    """Return the ranks that the example starts by itself."""
    return int(own["encoder_ranks"]) + sizes["llm-tp"] * sizes["llm-pp"] * sizes["llm-dp"]


def _flops(args: MegatronArgs, given: MimoOverrides) -> tuple[float, tuple[str, ...]]:
    text = args.text("--device-flops")
    if given.device_flops is not None:
        return given.device_flops, ()
    if text is None:
        note = f"rates are guessed ({GUESSED_FLOPS:.0e} FLOP/s a rank) until the first trials have measured them"
        return GUESSED_FLOPS, (note,)
    try:
        flops = float(text)
    except ValueError:
        flops = 0.0
    if not 0 < flops < math.inf:
        raise UsageError(f"--device-flops must be a number above 0, but is {text!r}: correct it in the command")
    return flops, ()


def _images(args: MegatronArgs) -> tuple[int, ...]:
    text = args.text("--images") or IMAGES
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"--images takes counts such as 2,1,3,0, but got {text!r}.")
    return tuple(int(word) for word in words)


def _encoder(sizes: Mapping[str, int]) -> EncoderConfig:
    return EncoderConfig(
        transformer=_transformer(sizes, "encoder"),
        patch_size=sizes["patch-size"],
        patches_per_item=sizes["patches"],
        token_id=0,
    )


def _language(sizes: Mapping[str, int]) -> LanguageConfig:
    return LanguageConfig(
        transformer=_transformer(sizes, "llm"), vocab_size=sizes["vocab-size"], seq_length=sizes["seq-length"]
    )


def _transformer(sizes: Mapping[str, int], name: str) -> TransformerConfig:
    layers, hidden, heads = (sizes[f"{name}-{what}"] for what in ("layers", "hidden", "heads"))
    return TransformerConfig(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=4 * hidden)
