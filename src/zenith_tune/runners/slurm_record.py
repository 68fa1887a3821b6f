"""What a Slurm trial notes of itself, in its own folder: it outlives the tuner and the scheduler's memory."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.study.files import TrialFolder

_MAX_EXIT_CODE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRecord:
    """Hold where a job began and how its command exited, by the word of its own shell."""

    nodes: str = ""
    has_begun: bool = False
    exit_code: int | None = None
    duration_s: float = 0.0

    @classmethod
    def read(cls, files: TrialFolder, job_id: str) -> SlurmRecord:
        """Read the record, as far as this very job wrote it: one on a node that was given up may write late."""
        begin = _pairs(files.read(files.process), job_id)
        end = _pairs(files.read(files.exit_code), job_id)
        code = end.get("code", "")
        is_code = code.isascii() and code.isdigit() and int(code) <= _MAX_EXIT_CODE
        return cls(
            nodes=begin.get("nodes", ""),
            has_begun=bool(begin),
            exit_code=int(code) if is_code else None,
            duration_s=max(_number(end.get("time")) - _number(begin.get("time")), 0.0) if is_code else 0.0,
        )


def _pairs(text: str, job_id: str) -> dict[str, str]:
    pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return pairs if pairs.get("job") == job_id else {}


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
