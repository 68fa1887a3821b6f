from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zenith_tune.presets.accelerate.yaml_file import YamlError, read_yaml

KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
WORDS = st.one_of(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30),
    st.sampled_from(
        ["no", "yes", "~", "null", "2", "1.5", "1e-05", "010", "12:30", "a: b", "x #y", "- a", "'", '"', "{a}"]
    ),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(-1e6, 1e6, width=32), WORDS)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy with other tests draws slowly."""


@unhurried
@given(
    st.dictionaries(KEYS, st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS), st.lists(SCALARS, max_size=3)), min_size=1)
)
def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it_or_refused(values: dict[str, object]) -> None:
    text = yaml.safe_dump(values, width=10_000)
    try:
        found = read_yaml(text)
    except YamlError:
        return
    assert found == yaml.safe_load(text)


@unhurried
@given(
    st.dictionaries(KEYS, st.one_of(st.booleans(), st.integers(0, 10**6), st.sampled_from(["no", "bf16", "10.0.0.1"])))
)
def test_nothing_that_accelerate_writes_is_refused(section: dict[str, object]) -> None:
    values = {
        "num_processes": 8,
        "tpu_env": [],
        "part": section,
        "main_process_ip": "10.0.0.1",
        "mixed_precision": "no",
    }
    assert read_yaml(yaml.safe_dump(values)) == values


def test_comments_blank_lines_and_document_marks_do_not_count() -> None:
    text = "---\n# a\n\na: 1   # b\nb: '#c' # d\nc: x#y\nd:\n  # e\n  e: \"f # g\"\nf:   # nothing\n...\n"
    assert read_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: {b: 1}",
        "a: [1, 2]",
        "a: &x 1",
        "a: *x",
        "a: !!str 1",
        "a: |\n  text",
        "a: 1\na: 2",
        "a: 1\n  b: 2",
        "\ta: 1",
        "a: 010",
        "a: 1_000",
        "just words",
        "a: 'open",
        'a: "open',
        "a: b: c",
        "a:\n - b: 1",
        "# nothing",
    ],
)
def test_the_rest_of_yaml_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_yaml(text)
    assert "\n" not in str(caught.value)
