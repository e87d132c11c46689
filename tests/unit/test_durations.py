from __future__ import annotations

import pytest

from semaphore_operator.durations import milliseconds, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1s", 1000), ("30s", 30_000), ("1m30s", 90_000), ("2h", 7_200_000), ("1500ms", 1500), ("1h1m1s1ms", 3_661_001)],
)
def test_durations_are_read_as_kubernetes_writes_them(text, expected):
    assert milliseconds(text) == expected
    assert seconds(text) == expected / 1000


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "1d", "-1s", "1.5s", "s", "1s ", "100000s"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="a duration is written like 30s"):
        milliseconds(text)
