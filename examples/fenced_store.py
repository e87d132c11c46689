"""A store that refuses a holder whose time is over, shown with one that is stopped in the middle of its work.

export SEMAPHORE_REDIS_URL=redis://127.0.0.1:6379/0
python examples/fenced_store.py

A process that is paused (a virtual machine that moves, a swapped out page, SIGSTOP) cannot notice that its lease runs
out, and when it goes on its next write may already be under way. Only the store can refuse that write: it remembers the
highest fence that has written, and takes no lower one. See Martin Kleppmann, "How to do distributed locking" (2016).
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from distributed_semaphore import Semaphore

SCHEMA = "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL, fence INTEGER NOT NULL)"
# One statement, so no other writer gets between the look and the write.
WRITE = """
INSERT INTO entries VALUES (:key, :value, :fence)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, fence = excluded.fence WHERE excluded.fence >= entries.fence
"""


class StaleFence(Exception):
    """A later holder has written already."""


class FencedStore:
    """Values in SQLite, each written by holders of a semaphore with limit 1, in the order of their fences."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as connection, connection:
            connection.execute(SCHEMA)

    def write(self, key: str, value: str, fence: int) -> None:
        """Write a value.

        Raises:
            StaleFence: somebody with a higher fence has written this key; nothing has changed.
        """
        with closing(self._connect()) as connection, connection:
            changed = connection.execute(WRITE, {"key": key, "value": value, "fence": fence}).rowcount
        if not changed:
            raise StaleFence(f"{key} was written with a higher fence than {fence}")

    def read(self, key: str) -> str | None:
        """Give a value, None if there is none."""
        with closing(self._connect()) as connection:
            row = connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=10)


def export(path: Path) -> None:
    """Take the slot, wait for the word, and write."""
    store = FencedStore(path)
    with Semaphore("nightly-export", limit=1, lease=1).slot() as slot:
        print("holding", flush=True)
        sys.stdin.readline()
        try:
            store.write("report", "written by the one that was stopped", slot.fence)
            print("its late write was taken")
        except StaleFence:
            print("its late write was refused")
            raise


def main() -> None:
    """Stop a holder for longer than its lease, do its work, and let it go on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        command = [sys.executable, __file__, str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as first:
            assert first.stdout is not None
            print("first: ", first.stdout.readline(), end="")
            os.kill(first.pid, signal.SIGSTOP)
            with Semaphore("nightly-export", limit=1, lease=1).slot(timeout=30) as slot:
                FencedStore(path).write("report", "written by the second", slot.fence)
                print(f"second: wrote, after {slot.waited:.0f} s in which nobody had given the slot back")
            os.kill(first.pid, signal.SIGCONT)
            print("first: ", first.communicate("go on\n")[0], end="")
        print("report:", FencedStore(path).read("report"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        export(Path(sys.argv[1]))
    else:
        main()
