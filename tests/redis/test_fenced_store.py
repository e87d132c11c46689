"""The example of a store that refuses old fences, and the program around it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from distributed_semaphore.testing import RedisServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "fenced_store.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = spec_from_file_location("fenced_store", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stalled_holders_late_write_is_refused(server: RedisServer) -> None:
    """A holder is stopped beyond its lease; the next one writes; the first goes on in the middle of its own write."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "SEMAPHORE_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = ended.stdout.splitlines()
    assert said[0] == "first:  holding"
    assert said[1].startswith("second: wrote, after ")
    assert said[2:] == ["first:  its late write was refused", "report: written by the second"]


def test_the_store_takes_rising_fences_and_the_same_again(example: Any, tmp_path: Path) -> None:
    store = example.FencedStore(tmp_path / "store.db")
    store.write("report", "one", 7)
    store.write("report", "two", 7)
    store.write("report", "three", 9)
    with pytest.raises(example.StaleFence, match="report was written with a higher fence than 8"):
        store.write("report", "late", 8)
    store.write("another", "first of its key", 8)
    assert (store.read("report"), store.read("another"), store.read("none")) == ("three", "first of its key", None)


def test_writers_that_race_leave_the_highest_fence_behind(example: Any, tmp_path: Path) -> None:
    store = example.FencedStore(tmp_path / "store.db")
    start = threading.Barrier(8)

    def write(fence: int) -> None:
        start.wait(10)
        for _ in range(10):
            try:
                store.write("report", str(fence), fence)
            except example.StaleFence:
                return

    threads = [threading.Thread(target=write, args=(fence,)) for fence in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert store.read("report") == "7"
