"""Commands of the runtime here: examples/mimo_train.py, and scripts that take their layout by the same options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.config import LANGUAGE, EncoderConfig, LanguageConfig, TransformerConfig
from zenith_mimo.planning.hugging_face import causal_work, parts_of, vision_work
from zenith_mimo.planning.job import MimoDevice, MimoJob
from zenith_mimo.planning.work import ModuleRates, ModuleWork, encoder_work, language_work
from zenith_mimo.preset.command import runs_example
from zenith_mimo.preset.device import GUESSED_FLOPS, MEASURED, MEASURED_HUGGING_FACE, cpu_device, gpu_device
from zenith_mimo.preset.job import ARGUMENT, PRESET, MimoArguments, ReadCommand, checked_ranks, read_counts
from zenith_tune.describe.machine import TIMEOUT_S, listed_gpus, nvidia_smi
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.presets.shared.subject import job_cluster
from zenith_tune.presets.shared.training_files import path_in_training_folder
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params, Value
from zenith_tune.units import whole

LAYOUT = {
    **dict.fromkeys(("encoder-tp", "encoder-dp", "encoder-pp", "llm-tp", "llm-pp", "llm-dp", "micro-batch-size"), 1),
    "global-batch-size": 16,
}
"""The defaults of the options that zenith_mimo.command adds to a script."""
DEFAULTS = {
    **LAYOUT,
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


def read_runtime(line: ParsedCommand, given: MimoArguments) -> ReadCommand:
    """Read a command of the example, or of a script of the user's."""
    args = MegatronArgs(line)
    defaults = DEFAULTS if runs_example(line.text) else {**LAYOUT, **given.sizes}
    sizes = {name: args.count(f"--{name}") or defaults.get(name, 0) for name in DEFAULTS}
    own = _own_point(args, sizes)
    own_ranks = int(own["encoder_ranks"]) + sizes["llm-tp"] * sizes["llm-pp"] * sizes["llm-dp"]
    num_ranks = given.n_gpus or started_gpus(line.text) or own_ranks
    is_sharded = line.has("--use-distributed-optimizer")
    folders = _folders(line)
    measured = MEASURED_HUGGING_FACE if LANGUAGE in folders else MEASURED
    device, notes = _device(line, num_ranks, given, measured, is_low=line.has("--bf16"), is_sharded=is_sharded)
    works = _trained(line, *_works(folders, sizes))
    by_megatron = args.text("--backend") == "megatron"
    if by_megatron:  # its stages must have the same number of layers
        works = [replace(work, depths=(("the layers", work.num_layers),)) for work in works]
    images = args.text("--images") or (IMAGES if defaults is DEFAULTS else "1")
    job = MimoJob(
        encoder=works[0],
        language=works[1],
        num_ranks=checked_ranks(num_ranks),
        global_batch=sizes["global-batch-size"],
        items=given.items or read_counts("--images", images, ","),
        device=device,
        # Megatron joins the rows of several lanes, and cuts them on shared ranks, in equal parts.
        can_join_uneven=not by_megatron,
    )
    return ReadCommand(
        job=job,
        seq_length=sizes["seq-length"],
        options=example_options,
        switches=lambda candidate: {
            "--encoder-recompute": candidate.encoder_recompute,
            "--llm-recompute": candidate.language_recompute,
        },
        own=own,
        notes=notes,
    )


def _folders(line: ParsedCommand) -> dict[str, Path]:
    """Return the folders of Hugging Face that a command names, by the modules that they have."""
    target = line.found_target
    found: dict[str, Path] = {}
    for word in target.words[target.first :] if target is not None else ():
        path = path_in_training_folder(line.text, word.value.rpartition("=")[2])
        if (path / "config.json").is_file():
            for part in parts_of(path) - found.keys():
                found[part] = path
    return found


def _works(folders: Mapping[str, Path], sizes: Mapping[str, int]) -> tuple[ModuleWork, ModuleWork]:
    """Return the work of both modules, by their folders or by their sizes."""
    seq_length = _size(sizes, "seq-length")
    if LANGUAGE in folders:
        language = causal_work(folders[LANGUAGE], seq_length)
    else:
        transformer = _transformer(sizes, "llm")
        config = LanguageConfig(transformer=transformer, vocab_size=_size(sizes, "vocab-size"), seq_length=seq_length)
        language = language_work(config)
    width = int(language.hidden_numbers) // seq_length
    if "vision" in folders:
        return vision_work(folders["vision"], width, num_patches=sizes["patches"] or None), language
    patches = _size(sizes, "patches")
    encoder = EncoderConfig(
        transformer=_transformer(sizes, "encoder"),
        patch_size=_size(sizes, "patch-size"),
        patches_per_item=patches,
        token_id=0,
    )
    return encoder_work(encoder, width), language


def _size(sizes: Mapping[str, int], name: str) -> int:
    if not (size := sizes[name]):
        problem = f"{PRESET} must know the shape of both modules, but the command does not give {name}"
        raise UsageError(
            problem, hint=f"name the folders of their config.json in it, or give --args {ARGUMENT[name]}=N"
        )
    return size


def _device(
    line: ParsedCommand,
    num_ranks: int,
    given: MimoArguments,
    measured: Mapping[str, ModuleRates],
    *,
    is_low: bool,
    is_sharded: bool,
) -> tuple[MimoDevice, tuple[str, ...]]:
    """Return the hardware of a rank: a GPU of the cluster or of this machine, else a share of its cores; and notes."""
    share = None if given.cluster else cpu_share(line, num_ranks, given.cores)
    if share is None:
        cluster = job_cluster(given.cluster, num_ranks)
        device = gpu_device(cluster, given, is_low=is_low, is_sharded=is_sharded, measured=measured)
        return device, (f"planned for {cluster.name}",)
    notes = [] if given.device_flops else [f"the plan guesses {GUESSED_FLOPS:.2g} FLOP/s a rank; trials correct it"]
    if share < 1:
        notes.append(f"the ranks of a host share its cores: the plan counts {share:.2g} of what each rank could use")
    return cpu_device(share, given, is_low=is_low, is_sharded=is_sharded), tuple(notes)


def cpu_share(line: ParsedCommand, num_ranks: int, cores: int | None) -> float | None:
    """Return the part of its cores that a rank has while all ranks of its host compute; None where each has a GPU."""
    launcher = line.launcher
    if launcher is None:  # the example starts all ranks here, on the CPU and with one thread each
        ranks, threads = num_ranks, 1
    else:
        variables = {**os.environ, **({} if line.needs_shell else line.assignments())}
        ranks = whole(launcher.option("--nproc-per-node") or "") or num_ranks
        threads = whole(variables.get("OMP_NUM_THREADS", "")) or 1  # torchrun's own
        if cores is None and variables.get("CUDA_VISIBLE_DEVICES") != "" and _num_gpus() >= ranks:
            return None
    # The cores that this process, and so its trials, may use.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min((cores or own) / (ranks * threads), 1.0)


def _num_gpus() -> int:
    try:
        return len(listed_gpus(nvidia_smi("-L", timeout_s=TIMEOUT_S)))
    except UsageError:
        return 0


def _trained(line: ParsedCommand, encoder: ModuleWork, language: ModuleWork) -> list[ModuleWork]:
    """Return the works with what is frozen: the tower, whose projector still learns, and the language model."""
    if line.has("--freeze-vit"):
        still = {"is_trained": False, "passes_gradient": False}
        layer, first = replace(encoder.layer, **still), replace(encoder.first, **still)
        encoder = replace(encoder, layer=layer, first=first, last=replace(encoder.last, passes_gradient=False))
    if line.has("--freeze-lm"):
        parts = {name: replace(getattr(language, name), is_trained=False) for name in ("first", "layer", "last")}
        language = replace(language, **parts)
    return [encoder, language]


def example_options(candidate: MimoCandidate) -> Mapping[str, Value]:
    """Return the options of a layout that take a value."""
    modules = {"encoder": candidate.encoder, "llm": candidate.language}
    degrees = {f"--{name}-{axis}": getattr(of, axis) for name, of in modules.items() for axis in ("tp", "pp", "dp")}
    return {**degrees, "--llm-offset": candidate.language.offset, "--micro-batch-size": candidate.micro_batch}


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
    layers, hidden, heads = (_size(sizes, f"{name}-{what}") for what in ("layers", "hidden", "heads"))
    return TransformerConfig(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=4 * hidden)
