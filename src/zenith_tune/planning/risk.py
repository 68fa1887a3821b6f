"""How likely a layout may be to run out of memory and still count as one that fits."""

RISK = 0.3
