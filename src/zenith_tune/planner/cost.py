"""What a training takes: days, GPU-hours and money."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.describe.gpu_catalog import PRICES_OF, gpu_name, public_price
from zenith_tune.errors import UsageError
from zenith_tune.registry import parse_pairs
from zenith_tune.study.budget import refuse_price
from zenith_tune.units import format_days, format_dollars, format_gpu_hours, format_tokens

Prices = float | Mapping[str, float] | str | None
"""Dollars for a GPU-hour: one price, or one for each kind of GPU; None takes public ones."""
MAX_TOKENS = 1e18
PER_TOKENS = 1e9
"""Tokens of a training whose length is not given: costs are compared for as many."""
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_TOKENS = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?(?:e[0-9]{1,2})?) ?([kmbt]?)", re.IGNORECASE | re.ASCII)


def parse_tokens(tokens: float | str) -> float:
    """Read a number of tokens.

    >>> parse_tokens("1T"), parse_tokens("1.5b"), parse_tokens("3e11"), parse_tokens(2_000)
    (1000000000000.0, 1500000000.0, 300000000000.0, 2000.0)
    """
    match = _TOKENS.fullmatch(str(tokens).strip())
    number = float(match[1]) * _SCALES[match[2].lower()] if match else math.nan
    if not 1 <= number <= MAX_TOKENS:
        problem = f"--tokens must be a number from 1 to {MAX_TOKENS:g}, but got {str(tokens)[:40]!r}"
        raise UsageError(problem, hint="write e.g. 300B or 1T")
    return number


def parse_prices(prices: Prices) -> dict[str, float]:
    """Read prices, those of GPUs by the catalog's names; "" is the price of all others.

    >>> parse_prices("2.5"), parse_prices("h100=2.5,GB200=9")
    ({'': 2.5}, {'h100': 2.5, 'gb200': 9.0})
    """
    if prices is None:
        return {}
    given: Mapping[str, float | str] = prices if isinstance(prices, Mapping) else {"": prices}
    if isinstance(prices, str) and "=" in prices:
        given = parse_pairs(prices, "--price", "h100=2.5,h200=3.5")
    return {gpu_name(name) if name else "": _price(price) for name, price in given.items()}


def _price(text: float | str) -> float:
    try:
        price = float(text)
    except ValueError:
        problem = f"--price must be dollars for a GPU-hour, but got {str(text)[:40]!r}"
        raise UsageError(problem, hint="write e.g. 2.5 or h100=2.5,h200=3.5") from None
    refuse_price(price)
    return price


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost:
    """What a training takes with one layout."""

    gpu: str
    tokens: float
    seconds: float
    interval_s: tuple[float, float]
    """90% interval of the seconds, by that of the step."""
    num_gpus: int
    price: float | None
    """Dollars for a GPU-hour, where that is known."""
    is_public: bool
    """Whether the price is the catalog's, not the user's."""

    @property
    def days(self) -> float:
        return self.seconds / 86_400

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.num_gpus / 3600

    @property
    def dollars(self) -> float | None:
        return None if self.price is None else self.gpu_hours * self.price

    @property
    def line(self) -> str:
        low, high = (format_days(end) for end in self.interval_s)
        time = f"{format_days(self.seconds)} ({low.removesuffix(' days')} to {high}, 90%)"
        if self.price is None or self.dollars is None:
            money = f"no public price of {self.gpu} is known: give --price"
        else:
            public = f", public price of {PRICES_OF}" if self.is_public else ""
            money = f"{format_dollars(self.dollars)} ({format_dollars(self.price)} a GPU-hour{public})"
        return f"{format_tokens(self.tokens)} tokens: {time}, {format_gpu_hours(self.gpu_hours)}, {money}"


def training_cost(
    tokens: float | str,
    prices: Prices,
    *,
    gpu: str,
    num_gpus: int,
    tokens_per_s: float,
    relative_interval: tuple[float, float],
) -> TrainingCost:
    """Return what so many tokens take at a speed, of which the times of 90% of runs are relative to the likeliest."""
    number, known = parse_tokens(tokens), parse_prices(prices)
    price, seconds = known.get(gpu, known.get("")), number / tokens_per_s
    low, high = relative_interval
    return TrainingCost(
        gpu=gpu,
        tokens=number,
        seconds=seconds,
        interval_s=(seconds * low, seconds * high),
        num_gpus=num_gpus,
        price=public_price(gpu) if price is None else price,
        is_public=price is None,
    )
