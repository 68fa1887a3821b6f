from __future__ import annotations

from collections import Counter

import pytest

from zenith_tune.shell import ParsedCommand, lexer
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.shell.scripts.runs import find_runs
from zenith_tune.shell.secrets import find_secrets
from zenith_tune.shell.variables import set_variables, with_variables


def test_a_command_is_lexed_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()
    tokens = lexer._Lexer.tokens

    def counted(self: lexer._Lexer) -> list[lexer.Token]:
        runs[self.text] += 1
        return tokens(self)

    monkeypatch.setattr(lexer._Lexer, "tokens", counted)
    command = "A=1 torchrun --nproc-per-node 2 read_once.py --lr 0.1"
    for _ in range(2):
        assert ParsedCommand.of(command).launcher is not None
        assert set_variables(command) == {"A": "1"}
        assert find_secrets(command) == []
        assert find_runs(command, lambda words, at: words[at] == "read_once.py").runs
        edited = with_variables(fill_or_set(command, {"lr": "--lr"}, {"lr": 0.2}), {"A": "2"})
        assert ParsedCommand.of(edited).get("--lr") == "0.2"
    assert runs[command] == runs[edited] == 1 and set(runs.values()) == {1}
