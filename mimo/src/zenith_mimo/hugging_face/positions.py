"""Positions of a text with images in it, as Qwen2-VL's M-RoPE takes them: by time, height and width."""

from __future__ import annotations

import torch
from torch import Tensor

from zenith_tune.errors import UsageError


def image_positions(tokens: Tensor, image_token: int, grid_thw: Tensor, *, merge: int = 2) -> Tensor:
    """Return (3, tokens): words count on, and a square of `merge` * `merge` patches stands where it is in its image.

    `grid_thw` has the patches of each image by time, height and width.

    >>> image_positions(torch.tensor([7, 3, 3, 8]), 3, torch.tensor([[1, 2, 4]])).tolist()
    [[0, 1, 1, 3], [0, 1, 1, 3], [0, 1, 2, 3]]
    """
    parts: list[Tensor] = []
    grids = iter(grid_thw.tolist())
    is_image = (tokens == image_token).tolist()
    at, following = 0, 0
    while at < len(is_image):
        if not is_image[at]:
            parts.append(torch.full((3, 1), following))
            at, following = at + 1, following + 1
            continue
        t, h, w = next(grids, (0, 0, 0))
        size = t * (h // merge) * (w // merge)
        if size == 0 or not all(is_image[at : at + size]) or at + size > len(is_image):
            raise UsageError(
                f"an image token must stand for each row of {len(grid_thw)} images, but those from token {at} on do "
                f"not fit their images: check the samples."
            )
        axes = [torch.arange(t), torch.arange(h // merge), torch.arange(w // merge)]
        parts.append(following + torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1))
        at, following = at + size, following + max(h, w) // merge
    return torch.cat(parts, 1)
