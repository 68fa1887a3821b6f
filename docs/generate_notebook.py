"""Run the cells of examples/first_study.ipynb, as a kernel would, and write the notebook with what they show.

python docs/generate_notebook.py        # in the root of a clone
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "first_study.ipynb"
SHOWN = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
"""How a notebook shows an object, by the method that it asks for it."""

Cell = dict[str, Any]


def run_cells(cells: list[Cell]) -> list[Cell]:
    """Return the cells with the outputs of those that hold code, run one after the other in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done: list[Cell] = []
    for cell in cells:
        if cell["cell_type"] != "code":
            done.append(cell)
            continue
        number = sum(each["cell_type"] == "code" for each in done) + 1
        done.append({**cell, "execution_count": number, "outputs": _run("".join(cell["source"]), names, number)})
    return done


def _run(source: str, names: dict[str, Any], number: int) -> list[Cell]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[Cell] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        outputs.append(
            {"data": _data(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _data(value: Any) -> Cell:
    shown = {kind: getattr(value, name)() for kind, name in SHOWN.items() if hasattr(value, name)}
    return {**{kind: text.splitlines(keepends=True) for kind, text in shown.items()}, "text/plain": [repr(value)]}


def main() -> int:
    """Run the notebook in an empty folder beside the examples, and write it."""
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("demo").symlink_to(ROOT / "examples" / "demo")
        notebook["cells"] = run_cells(notebook["cells"])
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
