"""What pytest leaves out where an extra is missing."""

from __future__ import annotations

import importlib.util

# Doctests are collected by importing, and these import torch.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["src/zenith_tune/mimo/*"]
