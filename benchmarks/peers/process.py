"""A worker process in another environment, which takes orders and answers in lines of JSON."""

from __future__ import annotations

import json
import selectors
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.workers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


class Worker:
    """One process; see worker.py for what it understands."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    @classmethod
    @contextmanager
    def several(cls, count: int, words: list[str], environment: dict[str, str]) -> Iterator[list[Worker]]:
        """Start processes of one command; the block begins when all are ready, and they end with it."""
        with ExitStack() as stack:
            workers = [cls(words, environment) for _ in range(count)]
            for worker in workers:
                stack.callback(worker.kill)
            for worker in workers:
                worker.hear()
            yield workers

    def order(self, **order: object) -> None:
        """Send an order."""
        pipe = self._process.stdin
        assert pipe
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def hear(self, patience: float = PATIENCE, *, optional: bool = False) -> Any:
        """Wait for an answer; None if it is optional and does not come in time.

        Raises:
            ChildProcessError: the process has ended, or says nothing for so many seconds.
        """
        pipe = self._process.stdout
        assert pipe
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            if not selector.select(patience):
                if optional:
                    return None
                raise ChildProcessError(f"a worker process has not answered for {patience:.0f} s")
        line = pipe.readline()
        if not line:
            raise ChildProcessError("a worker process has failed; its error is printed above")
        return json.loads(line)

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
