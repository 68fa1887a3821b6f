"""Which layers have experts, as Megatron-LM's --moe-layer-freq says it: a period, or a list in Python's notation."""

from __future__ import annotations

import ast

from zenith_tune.describe.megatron.args import shown, whole
from zenith_tune.errors import UsageError

OPTION = "--moe-layer-freq"
MOST = 100_000
"""Longer lists are no model's; a slip of the keyboard must not fill the memory."""


def expert_layers(text: str | None, num_layers: int) -> list[bool]:
    """Return for each layer whether it has experts; nothing is evaluated as code.

    >>> expert_layers("([0]*1+[1]*3)", 4), expert_layers("2", 4)
    ([False, True, True, True], [True, False, True, False])
    """
    period = _period(text)
    if period:
        return [layer % period == 0 for layer in range(num_layers)]
    pattern = _listed(text or "")
    if pattern is None:
        law = f"{OPTION} must be a whole number or a list such as ([0]*3+[1]*58)"
        raise UsageError(f"{law}, but is {shown(text or '')}: write it so")
    if len(pattern) != num_layers:
        law = f"{OPTION} must say of each of the {num_layers} layers whether it has experts"
        raise UsageError(f"{law}, but is of {len(pattern)}: correct it in the command")
    return [bool(item) for item in pattern]


def _period(text: str | None) -> int | None:
    if text is None:
        return 1
    return whole(text.strip()) or None


def _listed(text: str) -> list[int] | None:
    if len(text) > MOST:
        return None
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list) else None


def _value(node: ast.expr) -> list[int] | int:
    """Return what lists and numbers under + and * come to."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_value(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)]
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > MOST:
                raise ValueError(f"more than {MOST} layers")
            return left * right
    raise ValueError(ast.dump(node))
