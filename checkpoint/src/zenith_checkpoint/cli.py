"""The commands `zenithtune checkpoint merge` and `zenithtune checkpoint reshard`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from zenith_tune.cli.options import COUNT, Options, debug_option, echo_json, json_option, path_option
from zenith_tune.errors import StudyInterrupted, UsageError

if TYPE_CHECKING:
    from zenith_checkpoint.model_shape import ModelShape
    from zenith_checkpoint.output_place import Written

VOCAB_DIVISOR = 128
NAMED = ("heads", "kv_heads", "head_dim", "vocab", "tied", "whole_experts", "any_model")


def _of_the_model(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that describe a model's shape, and those that both commands have."""
    options = [
        click.option("--model", metavar="NAME|PATH", help="The model's name or config.json: gives all that follows."),
        click.option("--heads", type=COUNT, metavar="N", help="Attention heads."),
        click.option("--kv-heads", type=COUNT, metavar="N", help="Query groups, heads of keys and values."),
        click.option("--head-dim", type=COUNT, metavar="N", help="Size of a head."),
        click.option("--vocab", type=COUNT, metavar="N", help="Entries of the vocabulary, without padding."),
        click.option("--vocab-divisible-by", type=COUNT, default=VOCAB_DIVISOR, show_default=True, metavar="N",
                     help="Megatron-LM's --make-vocab-size-divisible-by."),
        click.option("--tied/--untied", default=None,
                     help="Whether the output layer is the embedding. [default: by the shards]"),
        click.option("--whole-experts", is_flag=True,
                     help="Experts are not split over tensor ranks: --expert-tensor-parallel-size 1."),
        click.option("--any-model", is_flag=True,
                     help="Its layers differ, or it has no embedding or final norm: "
                     "do not hold them against one another."),
        click.option("--force", is_flag=True, help="Replace what --output names, if it is of the same kind."),
        json_option,
        debug_option,
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(short_help="Join the shards of a checkpoint, or write them for another layout.")
def checkpoint() -> None:
    """Take a checkpoint to another layout, format or framework.

    Read are Megatron's mp_rank folders and torch_dist, what Accelerate and transformers save, and shards named
    pytorch_model_tp_T_pp_P.bin or .safetensors.
    """


@checkpoint.command(short_help="Join the shards of all ranks into one file.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@path_option("--output", required=True, help="The file to write, .safetensors or .bin; with --names hf, or a folder.")
@click.option("--names", type=click.Choice(["hf", "megatron"]),
              help="Give the weights the names of transformers, or Megatron's. [default: as they are]")  # fmt: skip
@_of_the_model
def merge(folder: Path, output: Path, **options: Any) -> int:
    """Join the shards in DIR into one file with the same names, their layers numbered through.

    \b
    zenithtune checkpoint merge checkpoint-1000 --output model.safetensors --model llama3-8b
    zenithtune checkpoint merge checkpoint-1000 --output llama --names hf --model llama/config.json
    """
    from zenith_checkpoint.convert import Names
    from zenith_checkpoint.convert import merge as run
    from zenith_tune.describe.config_json import config_path

    named = options["names"]
    settings = {
        "vocab_divisor": options["vocab_divisible_by"],
        "names": Names(named) if named else None,
        "config": config_path(Path(options["model"]).expanduser()) if options["model"] else None,
        "force": options["force"],
    }
    return _reported(output, options, lambda: run(folder, output, _shape(options), **settings))


@checkpoint.command(short_help="Write the shards for another layout.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--tp", type=COUNT, required=True, metavar="T", help="Tensor ranks of the new layout.")
@click.option("--pp", type=COUNT, required=True, metavar="P", help="Pipeline stages of the new layout.")
@path_option("--output", metavar="DIR", help="The folder to write. [default: DIR-tpT-ppP]")
@click.option("--layers-per-stage", metavar="N,N,...", help="Layers of each stage. [default: the same on each]")
@click.option("--numbering", type=click.Choice(["local", "global"]),
              help="Number the layers by stage, or through all stages. [default: as they are, else local]")  # fmt: skip
@click.option("--ep", type=COUNT, default=1, show_default=True, metavar="E", help="Expert ranks of the new layout.")
@click.option("--sequential-experts", is_flag=True,
              help="Name the experts of transformers' models as Megatron does without --moe-grouped-gemm.")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(["bin", "safetensors", "megatron", "torch_dist"]),
              help="Shards of either kind, or a folder that Megatron-LM loads: mp_rank folders or torch_dist. "
              "[default: as they are, else megatron]")  # fmt: skip
@click.option("--with-optimizer", is_flag=True,
              help="Carry the optimizer's state of Megatron's formats, or of optimizer_tp_T_pp_P.bin, too: "
              "masters, moments, step.")  # fmt: skip
@_of_the_model
def reshard(folder: Path, output: Path | None, **options: Any) -> int:
    """Write the weights of the shards in DIR for another layout, into a new folder.

    \b
    zenithtune checkpoint reshard checkpoint-1000 --tp 4 --pp 2 --model llama3-8b
    zenithtune checkpoint reshard run/checkpoints --tp 4 --pp 2 --with-optimizer
    """
    from zenith_checkpoint.convert import Target
    from zenith_checkpoint.convert import reshard as run
    from zenith_checkpoint.output_place import Format
    from zenith_checkpoint.split_rules import Numbering

    numbering, kind = options["numbering"], options["kind"]
    target = Target(
        tp=options["tp"],
        pp=options["pp"],
        layers_per_stage=_counts(options["layers_per_stage"]),
        numbering=Numbering(numbering) if numbering else None,
        format=Format(kind) if kind else None,
        ep=options["ep"],
        sequential_experts=options["sequential_experts"],
        vocab_divisor=options["vocab_divisible_by"],
        with_optimizer=options["with_optimizer"],
    )
    place = output or _beside(folder, f"-tp{target.tp}-pp{target.pp}")
    return _reported(place, options, lambda: run(folder, place, target, _shape(options), force=options["force"]))


def _beside(folder: Path, ending: str) -> Path:
    source = Path(os.path.realpath(folder))
    if not source.name:
        raise UsageError(f"{folder} has no name that a new folder could have with {ending}", hint="give --output DIR")
    return source.with_name(f"{source.name}{ending}")


def _reported(place: Path, options: Options, run: Callable[[], Written]) -> int:
    try:
        with _ended_in_order():
            written = run()
    except StudyInterrupted as error:  # caught here, because click takes every KeyboardInterrupt for Ctrl-C
        click.echo("zenithtune: interrupted: nothing was left behind", err=True)
        return 128 + error.signum
    if options["as_json"]:
        echo_json(written.as_object())
    else:
        click.echo("\n".join(written.lines(place)))
    return 0


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let signals that ask to stop raise, so that what is half written is removed."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise StudyInterrupted(signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    # A signal that whoever started us ignores (nohup) stays ignored.
    taken = [each for each in signals if is_main and signal.getsignal(each) is not signal.SIG_IGN]
    previous = {each: signal.signal(each, stop) for each in taken}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _counts(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise UsageError(
            f"--layers-per-stage must be whole numbers, as in 9,9,8, but is {text!r}", hint="write them so"
        )
    return tuple(int(part) for part in parts)


def _shape(options: Options) -> ModelShape:
    from zenith_checkpoint.model_shape import ModelShape

    shape = ModelShape()
    if options["model"] is not None:
        from zenith_tune.describe.model_catalog import load_model

        shape = ModelShape.of_model(load_model(options["model"]))
    named = {name: options[name] for name in NAMED}
    return replace(shape, **{name: value for name, value in named.items() if value is not None})
