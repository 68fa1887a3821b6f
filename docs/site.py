"""What `mkdocs` calls to build the site: pages outside of docs/ join it, and links between them stay as on GitHub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("*.md", "*.json", "*.svg", "*.csv", "*/result.json")
OTHERS = ("benchmarks/*.py", "examples/*.py", "tests/study/*.py", *(f"benchmarks/results/{kind}" for kind in KINDS))
PLANNER = ROOT / "build" / "plan.html"
"""Made by docs/build_planner.py, in minutes: `make site` does, `make check` does without."""
ALONE = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/first_study.ipynb")


def on_files(files: Files, config: Any) -> Files:
    """Add the benchmarks, the files that pages link to, the planner's page and the pages of the repository's root."""
    found = [path for pattern in OTHERS for path in sorted(ROOT.glob(pattern))] + [ROOT / name for name in ALONE]
    for path in found:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    page: Any = {"abs_src_path": str(PLANNER)} if PLANNER.exists() else {"content": "make site writes this page"}
    files.append(File.generated(config, PLANNER.name, **page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to the repository's root into links to the site's, where docs/ is the root."""
    if page.file.src_uri.startswith("benchmarks/"):
        return markdown.replace("](../../docs/", "](../../")
    return markdown.replace("](../", "](").replace("](docs/", "](")
