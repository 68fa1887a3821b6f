from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser.browsers import Browser


@pytest.fixture(scope="package")
def _chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """Return the browser; whatever a test does, the console must stay empty."""
    _chromium.complaints()
    yield _chromium
    _chromium.driver.get("about:blank")
    assert _chromium.complaints() == []
