"""The options that a command gives to Megatron-LM, by their kind: counts, texts and switches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand

MOST = 10_000_000
MOST_OF = {
    "--num-layers": 10_000,
    "--encoder-num-layers": 10_000,
    "--hidden-size": 1_000_000,
    "--num-attention-heads": 100_000,
    "--seq-length": 100_000_000,
    "--encoder-seq-length": 100_000_000,
    "--max-position-embeddings": 100_000_000,
}
"""Larger than any model or job has: a slip of the keyboard must not be planned for hours."""
SHOWN = 40
_PLACEHOLDER = re.compile(r"\{[A-Za-z_]\w*\}")


def shown(text: str) -> str:
    """Return a value as a message shows it: in quotes, and not longer than a line has room for."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


@dataclass(frozen=True, slots=True)
class MegatronArgs:
    """Options in either spelling; an option that holds a placeholder such as {tp} counts as not given."""

    line: ParsedCommand

    @classmethod
    def of(cls, arguments: Sequence[str]) -> MegatronArgs:
        return cls(ParsedCommand.from_argv(["python", "pretrain_gpt.py", *arguments]))

    def has(self, option: str) -> bool:
        return self.line.has(option)

    def first(self, *options: str) -> str | None:
        return next((option for option in options if self.has(option)), None)

    def text(self, option: str) -> str | None:
        value = self.line.get(option)
        return None if value is None or _PLACEHOLDER.fullmatch(value) else value

    def count(self, option: str, *, least: int = 1) -> int | None:
        """Return an option's value as a whole number; what only a shell could work out is refused."""
        text = self.text(option)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            problem = f"{option} must be a whole number for a plan to be made"
            raise UsageError(f"{problem}, but is {shown(text)}", hint="write the number in its place") from None
        if number < least:
            raise UsageError(f"{option} must be at least {least}, but is {number}: correct it in the command")
        if number > (most := MOST_OF.get(option, MOST)):
            problem = f"{option} must be at most {most}, but is {shown(text)[1:-1]}"
            raise UsageError(f"{problem}: correct it in the command")
        return number


LOCAL = "megatron-local"
UNFUSED = ("unfused", "local")
"""Values of --attention-backend that keep the scores."""


def job_from_args(args: MegatronArgs) -> JobSpec:
    """Return the job that the options describe."""
    seq_len = args.count("--seq-length") or args.count("--encoder-seq-length")
    if not seq_len:
        raise UsageError("the command must give the sequence length, but has no --seq-length", hint="add it")
    return JobSpec(
        seq_len=seq_len,
        framework=load_framework(LOCAL if is_local(args) else "megatron"),
        precision=precision_from_args(args),
        dispatcher="flex" if args.text("--moe-token-dispatcher-type") == "flex" else "alltoall",
        gathers_fp8=args.has("--fp8-param-gather"),
    )


def is_local(args: MegatronArgs) -> bool:
    """Return whether Megatron runs without Transformer Engine."""
    return args.text("--transformer-impl") == "local"


def has_flash_attention(args: MegatronArgs) -> bool:
    """Return whether attention is fused; without Transformer Engine, Megatron's own is not."""
    return not is_local(args) and args.text("--attention-backend") not in UNFUSED


def precision_from_args(args: MegatronArgs) -> str:
    """Return the precision of the matrix products; without an option Megatron trains in fp32."""
    if args.first("--fp4-format", "--fp4-param-gather"):
        return "nvfp4"
    if args.has("--fp8-format"):
        return "mxfp8" if args.text("--fp8-recipe") == "mxfp8" else "fp8"
    return next((kind for kind in ("bf16", "fp16") if args.has(f"--{kind}")), "fp32")
