"""A model like Llama of a given size: one of the catalog where it has that size, else a shape that comes to it.

Legend: L layers, h hidden size, N parameters, V vocabulary. Llama-2 and GPT-3 have h = 102 L to 128 L, and a layer has
12 h^2 parameters or a little more, so that N = 12 L (128 L)^2 gives L; the feed-forward width makes up for rounding.
"""

from __future__ import annotations

import re

from zenith_tune.describe.model_catalog import catalog_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError

CATALOG = {7: "llama2-7b", 8: "llama3-8b", 13: "llama2-13b", 70: "llama2-70b", 405: "llama3-405b"}
LEAST, MOST = 1.0, 2000.0
HEAD_DIM, VOCAB = 128, 32_000
ASPECT = 128
MULTIPLE = 8
"""Layers and heads come in eights, so that any usual size of pipeline or tensor parallelism divides them."""
GROUPED_FROM = 30.0
"""Billions from which on keys and values are grouped, as in Llama-2 34B and 70B."""
_SIZE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*([bt]?)", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> float:
    """Read a size in billions of parameters, or in trillions (T).

    >>> parse_size("70B"), parse_size("1.5b"), parse_size("13"), parse_size("1T")
    (70.0, 1.5, 13.0, 1000.0)
    """
    match = _SIZE.fullmatch(text.strip())
    billions = float(match[1]) * (1000.0 if match[2].lower() == "t" else 1.0) if match else 0.0
    if not LEAST <= billions <= MOST:
        law = f"a size must be {LEAST:g}B to {MOST:g}B, in billions of parameters"
        raise UsageError(f"{law}, but got {text[:40]!r}: write e.g. 70B")
    return billions


def sized_model(billions: float) -> ModelSpec:
    """Return the model of a size.

    >>> model = sized_model(40)
    >>> model.num_layers, model.hidden, round(model.num_params / 1e9, 1)
    (56, 8192, 40.0)
    """
    if billions in CATALOG:
        return catalog_model(CATALOG[int(billions)])
    target = billions * 1e9
    layers = _rounded((target / (12 * ASPECT**2)) ** (1 / 3), MULTIPLE)
    hidden = _rounded((target / (12 * layers)) ** 0.5, MULTIPLE * HEAD_DIM)
    heads = hidden // HEAD_DIM
    groups = MULTIPLE if billions >= GROUPED_FROM else heads
    attention = 2 * hidden * hidden + 2 * hidden * groups * HEAD_DIM
    left = (target - 2 * VOCAB * hidden) / layers - attention
    return ModelSpec(
        name=f"llama-like {billions:g}B",
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=_rounded(left / (3 * hidden), 256),
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=HEAD_DIM,
        vocab=VOCAB,
    )


def _rounded(number: float, multiple: int) -> int:
    return max(round(number / multiple), 1) * multiple
