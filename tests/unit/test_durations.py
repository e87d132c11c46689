from __future__ import annotations

import pytest

from semaphore_operator.durations import milliseconds, rough, seconds


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


@pytest.mark.parametrize(
    ("length", "written"),
    [(None, None), (0.04, "0.0s"), (9.4, "9.4s"), (9.6, "10s"), (59.6, "1m0s"), (200, "3m20s"), (7500, "2h5m")],
)
def test_an_estimate_is_written_for_people(length, written):
    assert rough(length) == written
