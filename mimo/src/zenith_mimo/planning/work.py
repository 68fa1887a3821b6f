"""What one module costs: arithmetic, parameters and kept activations of its layers and of its two ends; and its time.

A unit is what the module counts its input by: an item (an image) for an encoder, a sample for the language model.

s  tokens of a sequence, or patches of an item    h  hidden size
f  size of the perceptron's middle                w  hidden size of the language model
v  vocabulary                                     p  numbers in a patch

A GPU works through a layer at a rate of FLOPs and a time for each hidden number (norms, residuals, activations), which
tensor parallelism does not split; small layers take as long as the host needs to start their kernels.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zenith_mimo.planning.config import (
    LANGUAGE,
    EncoderConfig,
    LanguageConfig,
    MimoConfig,
    MimoLayout,
    TransformerConfig,
)
from zenith_tune.errors import UsageError


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """Return the layers of a stage, as even as they go."""
    if num_stages > num_layers:
        raise UsageError(f"pp must not exceed the layers, but got pp {num_stages} and {num_layers} layers.")
    return range(num_layers * stage // num_stages, num_layers * (stage + 1) // num_stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """One layer, or one end of a module; what tensor parallelism splits, and what every rank of the group has whole."""

    split_flops: float = 0.0
    """Forward FLOPs of one unit that tensor parallelism splits."""
    whole_flops: float = 0.0
    split_params: float = 0.0
    whole_params: float = 0.0
    expert_params: float = 0.0
    """Parameters that expert parallelism splits instead."""
    split_kept: float = 0.0
    """Numbers kept for the backward pass, for one unit."""
    whole_kept: float = 0.0
    is_trained: bool = True
    """Whether it has gradients of its own weights and an optimizer; a frozen part has neither."""
    passes_gradient: bool = True
    """Whether gradients go through it to something before it that is trained."""

    @property
    def backward_share(self) -> int:
        """Backward arithmetic in multiples of the forward one: once for its weights, once for its input."""
        return int(self.is_trained) + int(self.passes_gradient)

    def flops(self, tp: int) -> float:
        """Return one rank's forward FLOPs of one unit."""
        return self.split_flops / tp + self.whole_flops

    def params(self, tp: int, expert_ranks: int = 1) -> float:
        """Return one rank's parameters."""
        return self.split_params / tp + self.whole_params + self.expert_params / expert_ranks

    def kept(self, tp: int) -> float:
        """Return the numbers that one rank keeps of one unit."""
        return self.split_kept / tp + self.whole_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWork:
    """The layers of a module, all alike, between what its first and what its last stage have besides."""

    num_layers: int
    layer: PartWork
    first: PartWork
    last: PartWork
    hidden_numbers: float
    """Numbers between two layers, for one unit: a message of the pipeline, and what recomputation keeps."""
    output_numbers: float = 0.0
    """Numbers that an encoder gives to the language model for one item."""
    widths: tuple[tuple[str, int], ...] = ()
    """Sizes that tp must divide, by name."""
    depths: tuple[tuple[str, int], ...] = ()
    """Sizes that pp must divide, by name."""
    groups: tuple[tuple[str, int], ...] = ()
    """Sizes that tp must divide or be a multiple of, by name."""
    num_segments: int = 0
    """The stages that the model spells out, which pp must then be."""
    is_sequence_parallel: bool = False
    """Whether tensor-parallel ranks share out the tokens between the parts that they split."""
    dispatched_numbers: float = 0.0
    """Numbers that a layer sends to experts on other ranks, for one unit and one way."""
    num_experts: int = 0

    is_tied: bool = False
    """Whether a last stage of its own has what is split of the first end too."""

    def stage_parts(self, stage: int, num_stages: int) -> list[tuple[PartWork, int]]:
        """Return the parts of a stage, each with how many there are."""
        parts = [(self.layer, len(stage_layers(self.num_layers, stage, num_stages)))]
        if stage == 0:
            parts.append((self.first, 1))
        if stage == num_stages - 1:
            last = self.last
            if self.is_tied and num_stages > 1:
                last = replace(last, split_params=last.split_params + self.first.split_params)
            parts.append((last, 1))
        return parts

    def forward_flops(self, *, stage: int, num_stages: int, tp: int) -> float:
        """Return one rank's FLOPs for one unit forward."""
        return sum(count * part.flops(tp) for part, count in self.stage_parts(stage, num_stages))

    def backward_flops(self, *, stage: int, num_stages: int, tp: int, recompute: bool) -> float:
        """Return one rank's FLOPs for one unit backward: twice forward, and the blocks once more if recomputed.

        A frozen part takes once forward where gradients go through it, and nothing where nothing before it is trained.
        """
        total = 0.0
        for part, count in self.stage_parts(stage, num_stages):
            again = recompute and part is self.layer and part.backward_share > 0
            total += count * part.flops(tp) * (part.backward_share + again)
        return total

    def why_not_tp(self, tp: int) -> str | None:
        """Return what of a module a tensor parallelism cannot split; None where it goes."""
        for what, width in self.widths:
            if width % tp:
                return f"{what} must be a multiple of tp, but got {width} and tp {tp}: change one of them."
        for what, number in self.groups:
            if number % tp and tp % number:
                return (
                    f"{what} must be a multiple or a divisor of tp, but got {number} and tp {tp}: change one of them."
                )
        return None

    def why_not_pp(self, pp: int) -> str | None:
        """Return why a module cannot be cut into so many stages; None where it can."""
        if pp > self.num_layers:
            return f"pp must not exceed the layers, but got pp {pp} and {self.num_layers} layers."
        if self.num_segments and pp != self.num_segments:
            return (
                f"pp must be the number of segments in the pattern, but got pp {pp} and {self.num_segments} segments."
            )
        for what, depth in self.depths:
            if depth % pp:
                return f"{what} must be a multiple of pp, but got {depth} and pp {pp}: change one of them."
        return None


def layer_work(config: TransformerConfig, s: int, *, is_causal: bool) -> PartWork:
    """Return the work of one block: 2 s (4 h^2 + 2 h f + 2 s h) forward, the last term halved under a causal mask."""
    h, f = config.hidden_size, config.ffn_size
    scores = s * h if is_causal else 2 * s * h
    return PartWork(
        split_flops=2.0 * s * (4 * h * h + 2 * h * f + scores),
        split_params=4 * h * h + 2 * h * f + f,
        whole_params=6 * h,
        split_kept=s * (5 * h + 2 * f),
        whole_kept=4 * s * h,
    )


def encoder_work(config: EncoderConfig, language_width: int) -> ModuleWork:
    """Return an encoder's work by item: patches embedded whole, the blocks, and the projector of two layers."""
    s, h, p, w = config.patches_per_item, config.transformer.hidden_size, config.patch_size, language_width
    return ModuleWork(
        num_layers=config.transformer.num_layers,
        layer=layer_work(config.transformer, s, is_causal=False),
        first=PartWork(whole_flops=2.0 * s * p * h, whole_params=h * p + h + s * h, whole_kept=s * p),
        last=PartWork(
            split_flops=2.0 * s * (h * w + w * w),
            split_params=h * w + w + w * w,
            whole_params=2 * h + w,
            split_kept=2 * s * w,
            whole_kept=2 * s * h,
        ),
        hidden_numbers=s * h,
        output_numbers=s * w,
        widths=(
            ("the encoder's heads", config.transformer.num_heads),
            ("the encoder's perceptron", config.transformer.ffn_size),
            ("the language model's width", w),
        ),
    )


def language_work(config: LanguageConfig) -> ModuleWork:
    """Return the language model's work by sample: the blocks and the logits."""
    s, h, v = config.seq_length, config.transformer.hidden_size, config.vocab_size
    return ModuleWork(
        num_layers=config.transformer.num_layers,
        layer=layer_work(config.transformer, s, is_causal=True),
        first=PartWork(split_params=v * h, whole_params=s * h),
        last=PartWork(
            split_flops=2.0 * s * h * v,
            split_params=v * h,
            whole_params=2 * h,
            split_kept=3 * s * v,
            whole_kept=2 * s * h,
        ),
        hidden_numbers=s * h,
        widths=(
            ("the language model's heads", config.transformer.num_heads),
            ("the language model's perceptron", config.transformer.ffn_size),
            ("the vocabulary", v),
        ),
    )


def check_layout(config: MimoConfig, layout: MimoLayout) -> None:
    """Refuse a layout that a module cannot be split by."""
    for name, module in sorted(layout.modules.items()):
        work = module_work(config, name)
        if (broken := work.why_not_tp(module.tp) or work.why_not_pp(module.pp)) is not None:
            raise UsageError(broken)


def module_work(config: MimoConfig, name: str) -> ModuleWork:
    """Return the work of one module of a model."""
    if name == LANGUAGE:
        return language_work(config.language)
    return encoder_work(config.encoders[name], config.language.transformer.hidden_size)


def step_flops(config: MimoConfig, num_samples: int, num_items: int) -> float:
    """Return the FLOPs of a step over that many samples with that many items for each encoder in all.

    As Megatron counts them: forward, and twice that for backward.
    """
    counts = {LANGUAGE: num_samples, **dict.fromkeys(config.encoders, num_items)}
    return 3 * sum(
        count * module_work(config, name).forward_flops(stage=0, num_stages=1, tp=1) for name, count in counts.items()
    )


FIT_ROUNDS = 5
BUSY = 2.0
"""A layer that takes that many times the least is not waiting for its kernels to be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """The time that one pass of layers takes."""

    flops_per_s: float
    number_s: float = 0.0
    """Seconds for each hidden number of each layer."""
    layer_s: float = 0.0
    """Least seconds of a layer."""
    start_s: float = 0.0
    """Time of starting a layer, on a processor that does not start one while it computes another."""

    def seconds(self, flops: float, numbers: float = 0.0, num_layers: int = 1) -> float:
        """Return the time of that many FLOPs and hidden numbers in that many layers."""
        working_s = flops / self.flops_per_s + numbers * self.number_s
        return max(num_layers * self.layer_s, working_s) + num_layers * self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRates:
    """The rates of a module's two passes."""

    forward: PassRate
    backward: PassRate


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """One pass of one layer."""

    flops: float
    numbers: float
    seconds: float


def fit_rate(measured: Sequence[MeasuredPass]) -> PassRate:
    """Return the rate of measured layers by the least squares of relative errors.

    Those near the least time say what starting takes, the others the rest; where all are near, the rate is at least
    the best that was seen.
    """
    least = min(each.seconds for each in measured)
    found = PassRate(flops_per_s=1.0, layer_s=least)
    for _ in range(FIT_ROUNDS):
        busy = [each for each in measured if each.seconds > BUSY * found.layer_s]
        if not busy:
            best = max(each.flops / each.seconds for each in measured)
            return PassRate(flops_per_s=best, layer_s=statistics.median(each.seconds for each in measured))
        flops_s, number_s = _two_rates(busy)
        waiting = [each.seconds for each in measured if flops_s * each.flops + number_s * each.numbers < found.layer_s]
        layer_s = statistics.median(waiting) if waiting else 0.0
        found = PassRate(
            flops_per_s=float(f"{1 / flops_s:.6g}"), number_s=float(f"{number_s:.6g}"), layer_s=float(f"{layer_s:.6g}")
        )
    return found


def _two_rates(measured: Sequence[MeasuredPass]) -> tuple[float, float]:
    """Return the seconds by FLOP and by hidden number, neither below 0: t = a x + b n with weights 1 / t^2."""
    xs = [each.flops / each.seconds for each in measured]
    ns = [each.numbers / each.seconds for each in measured]
    xx, nn = sum(x * x for x in xs), sum(n * n for n in ns)
    xn, x1, n1 = sum(x * n for x, n in zip(xs, ns, strict=True)), sum(xs), sum(ns)
    determinant = xx * nn - xn * xn
    if determinant > 1e-9 * xx * nn:
        flops_s, number_s = (x1 * nn - n1 * xn) / determinant, (xx * n1 - xn * x1) / determinant
        if flops_s > 0 and number_s >= 0:
            return flops_s, number_s
    return x1 / xx, 0.0
