"""Secrets in logs are found as they are in commands, and quickly."""

from __future__ import annotations

import time

import pytest

from zenith_tune.record.view import mask_lines
from zenith_tune.shell.secrets import find_secrets, mask

STEP = " iteration {:8d}/     100 | elapsed time per iteration (ms): 512.5 | tokens/s: 9000 | lm loss: 2.0E+00 |"
TELLING = [
    "export WANDB_API_KEY=0123456789abcdef",
    "loading with --hub_token=xyz789",
    "Authorization: Bearer abcdef123456",
    "fetching https://me:hunter2@host/x?access_token=q1w2e3r4",
    'config: {"password": "letmein", "api_key": "k3y-of-mine"}',
    "--db-password hunter22 --steps 3",
    "login me:s3cr3tw0rd",
    "mail_pw=qwertz12 cookie=yummy123",
    "hf_abcdefghijklmnopqrstuvwx",
    "aws credentials=AKIAABCDEFGHIJKLMNOP",
    "--passphrase \\",
    "correct-horse",
]


@pytest.mark.parametrize("line", TELLING)
def test_what_is_found_in_a_command_is_found_in_a_log(line: str) -> None:
    lines = [STEP.format(1), line, STEP.format(2)]
    assert mask_lines(lines) == mask("\n".join(lines), find_secrets("\n".join(lines))).split("\n")


def test_all_of_them_at_once_are_masked_wherever_they_stand_again() -> None:
    lines = [STEP.format(1), *TELLING, STEP.format(2), "again: hunter22 and xyz789"]
    masked = mask_lines(lines)
    assert masked == mask("\n".join(lines), find_secrets("\n".join(lines))).split("\n")
    assert masked[-1] == "again: *** and ***" and len(masked) == len(lines)


def test_lines_without_a_telling_word_cost_next_to_nothing() -> None:
    lines = [STEP.format(step) for step in range(3000)]
    start = time.process_time()
    assert mask_lines(lines) == lines
    assert time.process_time() - start < 5
    assert mask_lines([]) == [] and mask_lines([""]) == [""]
