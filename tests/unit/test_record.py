from __future__ import annotations

import logging

from semaphore_operator.record import Record


def test_a_failure_is_counted_each_time_and_told_once(caplog):
    record = Record()
    with caplog.at_level(logging.INFO):
        for text in ("refused", "refused", "timed out", "timed out"):
            record.failed("redis", text)
        record.went_well("redis")
        record.went_well("redis")
        record.failed("redis", "refused")
    assert record.errors["redis"] == 5
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "refused",
        "timed out",
        "Redis works again",
        "refused",
    ]
