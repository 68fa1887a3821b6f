"""What a shell completes: names of studies, models and clusters, and files where no name fits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

NODES = (1, 2, 4, 8, 16)
"""Sizes of clusters that are offered, in nodes of the GPU's usual machine."""


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leave it to the shell, which knows files."""
    return [CompletionItem(incomplete, type="file")]


def models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the models of the catalog that begin so."""
    from zenith_tune.describe.model_catalog import known_models

    return _beginning(incomplete, known_models())


def clusters(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return this machine, and some clusters of every GPU of the catalog, that begin so; of a list, its last one."""
    from zenith_tune.describe.gpu_catalog import known_gpus, node_fields

    known = [f"{gpu}x{num_nodes * node_fields(gpu)['gpus_per_node']}" for gpu in known_gpus() for num_nodes in NODES]
    before = "".join(incomplete.rpartition(",")[:2])
    return _beginning(incomplete, [before + name for name in ("local", *known)])


def studies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the studies of the output folder or of the database that begin so, the newest first."""
    from zenith_tune.errors import ZenithTuneError

    try:
        return _beginning(incomplete, _study_names(context))
    except (OSError, ZenithTuneError):  # nothing may be printed between the words of a command
        return files(context, parameter, incomplete)


def _study_names(context: click.Context) -> list[str]:
    if (db := context.params.get("db")) is not None:
        from zenith_tune.record.reader import study_names
        from zenith_tune.record.storage import database_url

        return study_names(database_url(db))
    from zenith_tune.record.folder import DEFAULT_OUTPUT_DIR, RECORD_NAME

    # Folders alone: a database takes a second to open. An imported study has no record.
    root = Path(context.params.get("output_dir") or DEFAULT_OUTPUT_DIR).expanduser()
    found = [path for path in root.glob("*/*.json") if path.name in (RECORD_NAME, "study.json")]
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return list(dict.fromkeys(path.parent.name for path in newest))


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]
