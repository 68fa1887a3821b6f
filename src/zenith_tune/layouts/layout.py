"""A parallel layout: two factorizations of the same ranks, one for the dense layers and one for the experts.

The short spelling of a layout, read and written: `TP8 PP4 VP2 DP2 Z1 mbs1 SP full/uniform1`.

Order is free, what is left out is 1 or off, and `tp=8,pp=4,mbs=1,recompute=selective` says it as well.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.units import whole

RECOMPUTE_NAMES = ("none", "selective", "full/uniform", "full/block")
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "zbv", "dualpipe-v")
"""Orders of work of a pipeline; 1f1b is interleaved where a rank has several chunks."""
SPLIT = ("zero-bubble", "zbv", "dualpipe-v")
"""Those that run the backward pass for weights apart from that for inputs."""
FOLDED = ("zbv", "dualpipe-v")
"""Those whose first rank has the first and the last chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is split over `num_gpus` ranks.

    Megatron Core builds two factorizations of the same ranks, with the pipeline shared:
    dense `num_gpus = tp * cp * dp * pp`, experts `num_gpus = etp * ep * edp * pp`.
    """

    num_gpus: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    vp: int = 1
    """Model chunks per pipeline rank (interleaving)."""
    schedule: str = SCHEDULES[0]
    """One of SCHEDULES."""
    zero: int = 0
    """Sharding over the data-parallel ranks: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights."""
    recompute: str = "none"
    """none, selective, full/uniform or full/block."""
    recompute_layers: int = 0
    """Full recomputation: layers per checkpoint (uniform) or layers recomputed per chunk (block); else 0."""
    sequence_parallel: bool = False
    flash_attention: bool = True

    def __repr__(self) -> str:
        """Write what differs from the defaults.

        >>> Layout(num_gpus=8, tp=2)
        Layout(num_gpus=8, tp=2)
        """
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return f"Layout({', '.join(f'{name}={value!r}' for name, value, default in given if value != default)})"

    @property
    def dp(self) -> int:
        """Ranks that hold the same dense weights and process different samples."""
        return self.num_gpus // (self.tp * self.pp * self.cp)

    @property
    def edp(self) -> int:
        """Ranks that hold the same experts."""
        return self.num_gpus // (self.etp * self.ep * self.pp)

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per step and rank."""
        return self.global_batch // (self.micro_batch * self.dp)

    def recompute_is(self, names: Collection[str]) -> bool:
        return self.recompute in names

    def schedule_is(self, names: Collection[str]) -> bool:
        """Tell whether the pipeline's schedule is one of these."""
        return self.schedule in names


SIZES = ("tp", "pp", "vp", "cp", "ep", "etp", "dp")
COUNTS = (*SIZES, "zero", "mbs")
SWITCHES = ("sp", "flash")
RECOMPUTE = ("recompute", "recompute_layers")
FIELDS = {"mbs": "micro_batch", "sp": "sequence_parallel", "flash": "flash_attention"}
"""The fields of Layout whose short names differ."""
EXAMPLE = "'TP8 PP4 mbs1 SP full/uniform1' or tp=8,pp=4,mbs=1,sp=on,recompute=full/uniform1"

_ALIASES = {"z": "zero", "vpp": "vp", "sequence_parallel": "sp", "micro_batch": "mbs", "flash_attention": "flash"}
_WORDS = {"sp": ("sp", 1), "flash": ("flash", 1), "unfused": ("flash", 0)}
_TOKEN = re.compile(r"([a-z_]+)([0-9]+)")
_RECOMPUTE = re.compile(r"(?:full/)?(uniform|block)([0-9]*)")
_ON, _OFF = {"on", "true", "yes", "1"}, {"off", "false", "no", "0"}

Values = dict[str, int | str]


def layout_name(layout: Layout) -> str:
    """Return the short name of a layout, without sizes of 1 and switches that are off."""
    words = [f"{name.upper()}{getattr(layout, name)}" for name in SIZES if getattr(layout, name) > 1]
    words += [layout.schedule] * (layout.schedule != SCHEDULES[0])
    words += [f"Z{layout.zero}"] * (layout.zero > 0) + [f"mbs{layout.micro_batch}"]
    words += ["SP"] * layout.sequence_parallel + ["unfused"] * (not layout.flash_attention)
    if layout.recompute != "none":
        words.append(layout.recompute + (str(layout.recompute_layers) if layout.recompute_layers else ""))
    return " ".join(words)


def layout_of(values: Mapping[str, int | str], *, num_gpus: int, global_batch: int) -> Layout:
    """Return the layout of values by their short names; what is left out is 1 or off."""
    known: dict[str, Any] = {
        FIELDS.get(name, name): bool(value) if name in SWITCHES else value for name, value in values.items()
    }
    return Layout(num_gpus=num_gpus, global_batch=global_batch, **known)


def short_values(layout: Layout) -> Values:
    """Return the values of a layout by their short names."""
    return {name: getattr(layout, FIELDS.get(name, name)) for name in (*COUNTS, *SWITCHES, "schedule", *RECOMPUTE)}


def parse_layout(text: str, *, num_gpus: int, global_batch: int) -> Layout:
    """Read a layout; of its rules only that the sizes multiply to the GPUs is checked.

    >>> parse_layout("tp=4,pp=2,recompute=selective", num_gpus=8, global_batch=16).recompute
    'selective'
    """
    values = parse_values(text, what="layout")
    ranks = values.pop("dp", None)
    layout = layout_of(values, num_gpus=num_gpus, global_batch=global_batch)
    model_ranks = layout.tp * layout.pp * layout.cp
    if ranks is not None and model_ranks * int(ranks) != num_gpus:
        product = f"{layout.tp} * {layout.pp} * {layout.cp} * {ranks} = {model_ranks * int(ranks)}"
        raise UsageError(
            f"tp * pp * cp * dp must equal the GPUs, but got {product}, not {num_gpus}", hint="leave DP out"
        )
    return layout


def parse_values(text: str, *, what: str) -> Values:
    """Return the values in a text by their short names.

    >>> parse_values("TP8 mbs1 full/block4 SP", what="layout")
    {'tp': 8, 'mbs': 1, 'recompute': 'full/block', 'recompute_layers': 4, 'sp': 1}
    """
    values: Values = {}
    words = [word for word in re.split(r"[\s,]+", text.strip()) if word]
    if not words:
        raise UsageError(f"a {what} must name at least one size, but is empty", hint=f"write e.g. {EXAMPLE}")
    for word in words:
        for name, value in _read(word, what).items():
            if values.get(name, value) != value:
                raise UsageError(f"the {what} gives {name} twice ({values[name]} and {value})", hint="give it once")
            values[name] = value
    return values


def _read(word: str, what: str) -> Values:
    key, equals, value = word.lower().partition("=")
    if not equals:
        return _read_word(word, what)
    key = _ALIASES.get(key, key)
    if key == "recompute" and (kind := _recompute(value)) is not None:
        return kind
    if key == "schedule" and value in SCHEDULES:
        return {key: value}
    if key in SWITCHES and value in _ON | _OFF:
        return {key: int(value in _ON)}
    if key in (*COUNTS, "recompute_layers") and whole(value) is not None:
        return {key: _count(key, int(value), what)}
    raise _unknown(word, key, what)


def _read_word(word: str, what: str) -> Values:
    text = word.lower()
    if text in _WORDS:
        name, switch = _WORDS[text]
        return {name: switch}
    if text in SCHEDULES:
        return {"schedule": text}
    if (kind := _recompute(text)) is not None:
        return kind
    if match := _TOKEN.fullmatch(text):
        name = _ALIASES.get(match[1], match[1])
        if name in COUNTS:
            return {name: _count(name, int(match[2]), what)}
    raise _unknown(word, text, what)


def _recompute(text: str) -> Values | None:
    """Read `none`, `selective`, `full/block4`, `uniform`; uniform without a number is one layer."""
    if text in ("none", "selective"):
        return {"recompute": text, "recompute_layers": 0}
    if text == "full":
        return {"recompute": "full/uniform", "recompute_layers": 1}
    match = _RECOMPUTE.fullmatch(text)
    return {"recompute": f"full/{match[1]}", "recompute_layers": int(match[2] or 1)} if match else None


def _count(name: str, value: int, what: str) -> int:
    least = 0 if name in ("zero", "recompute_layers") else 1
    most = 3 if name == "zero" else 2**31 - 1
    if least <= value <= most:
        return value
    raise UsageError(f"{name} in a {what} must be {least} to {most}, but got {value}", hint="give another")


def _unknown(word: str, key: str, what: str) -> UsageError:
    known = [*COUNTS, *SWITCHES, "unfused", "schedule", *SCHEDULES, "recompute", *RECOMPUTE_NAMES]
    name = re.sub(r"[0-9]+$", "", key)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" did you mean {close[0]!r}?" if close and close[0] != name else ""
    return UsageError(f"a {what} cannot be read at {word!r};{guess} write e.g. {EXAMPLE}")


WORDS = {
    "tp": r"tensor[\s_-]*(?:model[\s_-]*)?parallel|\btp\b|num_attention_heads|query[\s_-]*groups|attention heads",
    "pp": r"pipeline[\s_-]*(?:model[\s_-]*)?parallel|\bpp\b|num_layers|number of layers",
    "vp": r"virtual|interleav",
    "cp": r"context[\s_-]*parallel|\bcp\b",
    "ep": r"expert[\s_-]*(?:model[\s_-]*)?parallel|\bep\b|num_experts|number of experts",
    "etp": r"expert[\s_-]*tensor|\betp\b",
    "mbs": r"micro[\s_-]*batch|\bmbs\b",
    "dp": r"data[\s_-]*parallel|\bdp\b",
    "recompute": r"recompute|checkpoint(?:ing)? activations",
    "sequence_parallel": r"sequence[\s_-]*parallel",
    "zero": r"distributed[\s_-]*optimizer|\bzero\b",
}
"""Patterns of an axis of the layout in a framework's message."""


def named_axes(message: str) -> tuple[str, ...]:
    """Return the axes of a layout that a framework's message names."""
    return tuple(axis for axis, words in WORDS.items() if re.search(words, message, re.IGNORECASE))


def divisors(number: int) -> list[int]:
    """Return every divisor in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
