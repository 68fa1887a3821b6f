from __future__ import annotations

# Programs: to import them for their doctests would need the engines.
collect_ignore_glob = ["*_program.py"]
