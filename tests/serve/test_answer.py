"""The examples of answer."""

from __future__ import annotations

from zenith_tune.serve.answer import is_gzip_accepted


def test_gzip_is_taken_where_it_is_accepted() -> None:
    assert is_gzip_accepted("gzip, deflate, br")
    assert not is_gzip_accepted("gzip;q=0")
    assert not is_gzip_accepted("")
