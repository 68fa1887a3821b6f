"""How numbers are written for people: GiB and ms are made only here."""

from __future__ import annotations

GIB = 2**30
MIB = 2**20


def format_bytes(num_bytes: float) -> str:
    """Write bytes as GiB.

    >>> format_bytes(3 * 2**29)
    '1.5 GiB'
    """
    return f"{num_bytes / GIB:.1f} GiB"


def format_seconds(seconds: float) -> str:
    """Write a duration in the unit that a person would use.

    >>> format_seconds(0.0123), format_seconds(3.21), format_seconds(200), format_seconds(7300)
    ('12 ms', '3.2 s', '3m20s', '2h01m')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def format_days(seconds: float) -> str:
    """Write how long a training takes, in days from two of them on.

    >>> format_days(864_000), format_days(7300), format_days(10.04 * 86_400), format_days(2e8)
    ('10 days', '2h01m', '10 days', '2,310 days')
    """
    days = seconds / 86_400
    return format_seconds(seconds) if days < 2 else f"{_three_digits(days)} days"


def format_dollars(dollars: float) -> str:
    """Write an amount of money, a large one to three digits.

    >>> format_dollars(3.85), format_dollars(614_210.4)
    ('$3.85', '$614,000')
    """
    return f"${dollars:,.2f}" if dollars < 100 else f"${_three_digits(dollars)}"


def format_gpu_hours(hours: float) -> str:
    """Write GPU time in hours.

    >>> format_gpu_hours(15_360.4), format_gpu_hours(2.345)
    ('15,400 GPU-hours', '2.35 GPU-hours')
    """
    return f"{_three_digits(hours)} GPU-hours"


def format_tokens(number: float) -> str:
    """Write a number of tokens.

    >>> format_tokens(1e12), format_tokens(1.5e9), format_tokens(200)
    ('1T', '1.5B', '200')
    """
    scale, unit = next((pair for pair in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if number >= pair[0]), (1.0, ""))
    return f"{number / scale:g}{unit}"


def _three_digits(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.10g}"


def format_value(value: float, unit: str = "") -> str:
    """Write a measured value with four significant digits and its unit.

    >>> format_value(123.456, "TFLOP/s/GPU")
    '123.5 TFLOP/s/GPU'
    """
    digits = f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return f"{digits} {unit}".strip()


def format_spread(fraction: float | None) -> str:
    """Write a relative spread behind a value, or nothing where it is not known.

    >>> format_spread(0.012), format_spread(None)
    (' ±1.2%', '')
    """
    return "" if fraction is None else f" ±{fraction * 100:.1f}%"


def format_range(half_width: float | None) -> str:
    """Write half of a 90% interval behind a value, with its name.

    >>> format_range(0.012), format_range(None)
    (' ±1.2% (90%)', '')
    """
    return "" if half_width is None else f"{format_spread(half_width)} (90%)"


def count(number: int, noun: str) -> str:
    """Write how many there are of something.

    >>> count(1, "trial"), count(2, "trial")
    ('1 trial', '2 trials')
    """
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_params(number: int) -> str:
    """Write a number of parameters, large ones in millions or billions.

    >>> format_params(26_784), format_params(12_300_000), format_params(8_030_000_000)
    ('26,784', '12.3M', '8.03B')
    """
    if number < 10**6:
        return f"{number:,}"
    scale, unit = (10**9, "B") if number >= 10**9 else (10**6, "M")
    return f"{number / scale:.3g}{unit}"


def format_gain(fraction: float) -> str:
    """Write a gain as a signed percentage.

    >>> format_gain(0.25)
    '+25.0%'
    """
    return f"{fraction * 100:+.1f}%"


def is_of_time(unit: str) -> bool:
    """Tell whether a unit is one of times or speeds, so that a better value is a faster run.

    >>> is_of_time("tokens/s"), is_of_time("s"), is_of_time("")
    (True, True, False)
    """
    return unit == "s" or unit.endswith(("/s", "/GPU", " s", "ms"))


def positive_int(value: object) -> int | None:
    """Return a value that is a whole number above 0; None for any other.

    >>> positive_int(16), positive_int(0), positive_int(True), positive_int("16")
    (16, None, None, None)
    """
    return value if type(value) is int and value > 0 else None


def whole(text: str) -> int | None:
    """Return the whole number that a text is, or None; one that does not fit into 64 bits is a typing error.

    >>> whole("16"), whole("-1"), whole("")
    (16, None, None)
    """
    return int(text) if text.isdecimal() and len(text) < 19 else None
