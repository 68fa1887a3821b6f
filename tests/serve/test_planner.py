"""The planner's answers: those of the command line, within limits, and of nothing but the catalog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.serve.served import Client, serving_of
from zenith_tune.cli.plan import plan
from zenith_tune.serve import planner

ASKED = "model=llama3-8b&cluster=h100x8&gbs=64&seq=4096"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving_of(None) as client:
        yield client


@pytest.mark.parametrize("more", ["", "&emit=megatron", "&precision=fp8", "&emit=deepspeed"])
def test_an_answer_is_that_of_the_command_line(client: Client, more: str) -> None:
    words = [f"--{each}" for each in f"{ASKED}{more}".split("&")]
    printed = CliRunner().invoke(plan, [*words, "--json"], standalone_mode=False).stdout
    assert client.get(f"/plan?{ASKED}{more}").json() == json.loads(printed)


def test_what_does_not_fit_is_an_answer(client: Client) -> None:
    found = client.get("/plan?model=llama3-405b&cluster=h100x8&gbs=64&seq=4096").json()
    assert found["best"] == [] and found["enough_gpus"] > 8


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": "llama3-9b"}, "llama3-8b"),
        ({"model": "{file}"}, "unknown model"),
        ({"model": "meta-llama/Llama-3.1-8B"}, "name"),
        ({"cluster": "{file}"}, "h100x64"),
        ({"cluster": "local"}, "h100x64"),
        ({"cluster": "h100x16392"}, "16,384"),
        ({"cluster": "h100x0"}, "number of GPUs"),
        ({"gbs": "0"}, "--gbs"),
        ({"gbs": "%00"}, "gbs"),
        ({"seq": "many"}, "--seq"),
        ({"seq": ""}, "--seq"),
        ({"emit": "--debug"}, "--emit"),
        ({"calibration": "mine.json"}, "calibration"),
        ({"html": "page.html"}, "html"),
    ],
)
def test_what_cannot_be_planned_is_one_line(client: Client, tmp_path: Path, change: dict[str, str], word: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    asked = dict(each.split("=") for each in ASKED.split("&")) | change
    query = "&".join(f"{name}={value.format(file=tmp_path.name)}" for name, value in asked.items())
    answer = client.get(f"/plan?{query}")
    assert answer.status == 400, answer.text
    assert answer.text.count("\n") == 1 and word in answer.text and "Traceback" not in answer.text


def test_a_plan_that_takes_too_long_is_ended(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "LIMIT_S", 0.05)
    answer = client.get("/plan?model=deepseek-v3&cluster=h100x2048&gbs=7680&seq=4096")
    assert answer.status == 503 and "zenithtune plan" in answer.text


def test_a_request_waits_for_others_only_so_long(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "WAIT_S", 0.05)
    with planner._TURNS, planner._TURNS:
        assert client.get(f"/plan?{ASKED}&precision=fp16").status == 503
    assert client.get(f"/plan?{ASKED}&precision=fp16").status in (200, 400)


def test_a_server_of_the_planner_has_no_study(client: Client) -> None:
    assert '"kind":"planner"' in client.get("/").text
    assert {client.get(path).status for path in ("/data.json", "/events", "/studies.json")} == {404}
    assert client.post("/pause").status == 404


def test_a_token_lets_in() -> None:
    with serving_of(None, token="a-token-of-this-test") as client:
        assert client.get(f"/plan?{ASKED}").status == 401
        assert client.get(f"/plan?{ASKED}", Authorization="Bearer a-token-of-this-test").status == 200
