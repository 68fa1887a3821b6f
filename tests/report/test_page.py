"""The page as a file: whole, closed to the network, and with nothing but text where there was text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.hostile import CLOSING, SCRIPT, write_hostile
from tests.report.studies import recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.html.page import SCRIPTS, data_text, render_page
from zenith_tune.report.study_digest import StudyDigest


class Tags(HTMLParser):
    """Collect the elements of a page, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.scripts += [""] if tag == "script" else []
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def digest(tmp_path: Path, *, hostile: bool = False) -> dict[str, Any]:
    study = write_hostile(tmp_path / "out") if hostile else recorded(tmp_path / "out")
    return StudyDigest(StudyReader(study.url, study.folder.path.name)).object()


def test_hostile_texts_make_no_element(tmp_path: Path) -> None:
    tame, hostile = Tags(render_page(digest(tmp_path))), Tags(render_page(digest(tmp_path / "h", hostile=True)))
    assert hostile.tags == tame.tags


def test_the_data_in_the_page_is_the_data_that_was_given(tmp_path: Path) -> None:
    content = digest(tmp_path, hostile=True)
    assert json.loads(Tags(render_page(content)).scripts[0]) == json.loads(json.dumps(content, default=str))


def test_a_title_is_text() -> None:
    page = render_page({"kind": "study", "title": f"{CLOSING}{SCRIPT} $style &amp;"})
    assert "<title>&lt;/script&gt;" in page and "$style &amp;amp;</title>" in page


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&lt;", "\u2028\u2029", "\ud800"])
def test_data_holds_nothing_that_a_parser_or_a_script_could_stop_at(text: str) -> None:
    written = data_text({"log": text})
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == {"log": text}


def test_a_number_that_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        data_text({"value": float("nan")})


def test_the_page_asks_no_network(tmp_path: Path) -> None:
    page = render_page(digest(tmp_path))
    assert sorted(Tags(page).links) == ["#main", "data:,"]
    outside = set(re.findall(r"https?://[^\s\"'`]+", page)) - {"http://www.w3.org/2000/svg"}
    assert outside == set()
    assert "connect-src 'none'" in page


def test_the_browser_is_ordered_to_run_this_script_alone(tmp_path: Path) -> None:
    page = render_page(digest(tmp_path))
    script = Tags(page).scripts[1]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page


def test_a_server_adds_its_own_script_and_may_ask_itself() -> None:
    page = render_page({"kind": "study", "title": "t"}, more_script="poll();", connect="'self'")
    assert "connect-src 'self'" in page and Tags(page).scripts[1].endswith("poll();")


def test_no_script_makes_elements_out_of_text() -> None:
    script = Tags(render_page({"kind": "study", "title": "t"})).scripts[1]
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in script
    assert len(SCRIPTS) == len(set(SCRIPTS))


def test_a_page_of_a_small_study_is_small(tmp_path: Path) -> None:
    assert len(render_page(digest(tmp_path)).encode()) < 150_000


def test_data_holds_nothing_for_an_html_parser() -> None:
    assert data_text({"log": "</script>"}) == '{"log":"\\u003c/script\\u003e"}'
