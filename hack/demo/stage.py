"""What the demo plays on: a Redis, a Kubernetes API server, the operator, and worker processes; all of them real."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rich.text import Text

import redis
from controlplane import ControlPlane
from distributed_semaphore.protocol.address import URL_VARIABLE, connect, without_password
from distributed_semaphore.protocol.scripts import inspect
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.console import Console

    from distributed_semaphore.protocol import Snapshot

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = "payments"
NAME: Final = "licensed-api"
PATIENCE: Final = 30.0


class BrokenPromiseError(Exception):
    """Something that should have happened did not."""


class Stage:
    """Everything that runs, ended in the reverse order of its start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.redis_url = ""
        self.plane = ControlPlane()
        self.log = Path(tempfile.gettempdir(), f"semaphore-demo-{os.getpid()}.log")
        self._ends = ExitStack()
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()
        self.log.unlink(missing_ok=True)

    def start(self) -> None:
        """Start Redis, Kubernetes and the operator."""
        if given := os.environ.get(URL_VARIABLE):
            self.redis_url = given
        else:
            self.redis_url = self._ends.enter_context(RedisServer()).url
        with redis.Redis.from_url(self.redis_url, decode_responses=True) as connection:
            server = connection.info("server")
        flavour = (
            "Valkey " + server["valkey_version"] if "valkey_version" in server else "Redis " + server["redis_version"]
        )
        self.say(f"{flavour} at {without_password(self.redis_url)}")
        self._ends.enter_context(self.plane)
        self._environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig), URL_VARIABLE: self.redis_url}
        self.say(f"Kubernetes at {self.plane.server}")

    def start_operator(self) -> None:
        """Start the operator; its log goes to a file that is shown when something breaks."""
        options = ["--port", "0", "--host", "127.0.0.1", "--sweep", "1", "--patch", "1"]
        with self.log.open("wb") as log:
            self.spawn(["-m", "semaphore_operator", *options], stdout=log, stderr=log)

    def spawn(self, arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a Python process that ends with the stage."""
        process = subprocess.Popen([sys.executable, *arguments], env=self._environment, cwd=ROOT, **options)
        self._ends.callback(_end, process)
        return process

    def worker(self, workers: int = 10) -> Worker:
        """Start a worker process; it connects while others start too."""
        program = str(Path(__file__).with_name("worker.py"))
        return Worker(
            self.spawn([program, NAMESPACE, NAME, str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )

    def kubectl(self, *arguments: str, show: bool = True) -> str:
        """Run kubectl as a user would, and show what it prints."""
        command = [str(self.plane.kubectl), *arguments]
        answer = subprocess.run(
            command, env=self._environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        if answer.returncode:
            raise BrokenPromiseError(f"kubectl {' '.join(arguments)}: {answer.stderr.strip()}")
        if show:
            self.console.print(Text(f"$ kubectl {' '.join(arguments)}", style="bold cyan"))
            self.console.print(Text(answer.stdout.rstrip() + "\n"))
        return answer.stdout

    def look(self, top: int = 10) -> Snapshot:
        """Look at the semaphore in Redis itself."""

        async def once() -> Snapshot:
            async with connect(self.redis_url) as connection:
                [snapshot] = await inspect(connection, [f"{NAMESPACE}/{NAME}"], top)
            if isinstance(snapshot, Exception):
                raise snapshot
            return snapshot

        return asyncio.run(once())

    def until(self, what: str, condition: Callable[[], bool], patience: float = PATIENCE) -> float:
        """Wait for something; give the seconds that it took.

        Raises:
            BrokenPromiseError: it did not come.
        """
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > patience:
                raise BrokenPromiseError(f"not within {patience:.0f}s: {what}")
            time.sleep(0.02)
        return time.monotonic() - start

    def say(self, text: str) -> None:
        """Tell the reader something."""
        self.console.print(Text(text))


class Worker:
    """A worker process and its orders; see `worker.py`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def order(self, text: str) -> None:
        """Give an order, without waiting."""
        if self.process.stdin is None:
            raise BrokenPromiseError("a worker takes no orders")
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the oldest order."""
        line = self.process.stdout.readline() if self.process.stdout else b""
        if not line:
            raise BrokenPromiseError("a worker process has ended early; what it said stands above")
        said: dict[str, Any] = json.loads(line)
        return said

    def ask(self, text: str) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        self.order(text)
        return self.answer()


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
