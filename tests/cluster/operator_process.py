"""The operator as a process of its own, as a user would start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT: Final = re.compile(r"on port (\d+)")
START: Final = 20.0
COMPILED: Final = Path(".pytest_cache", "compiled").resolve()


class OperatorProcess:
    """`python -m semaphore_operator` with its log in a file."""

    def __init__(self, kubeconfig: Path, log: Path, *arguments: str, within: Sequence[str] = ()) -> None:
        self.log = log
        self._within = within
        self._kubeconfig = kubeconfig
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def start(self) -> Self:
        """Start it and wait until it serves its probes."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMAPHORE_")}
        environment |= {"KUBECONFIG": str(self._kubeconfig), "PYTHONPYCACHEPREFIX": str(COMPILED)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling all it imports takes longer than a start
        command = [
            *self._within,
            sys.executable,
            "-m",
            "semaphore_operator",
            "--host=127.0.0.1",
            "--port=0",
            *self._arguments,
        ]
        with self.log.open("ab") as out:
            begin = out.tell()
            self._process = subprocess.Popen(command, env=environment, stderr=out, stdout=out)
        deadline = time.monotonic() + START
        while not (found := PORT.search(self.text[begin:])):
            assert self._process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)
        self._port = int(found[1])
        return self

    @property
    def port(self) -> int:
        """Port of its pages."""
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def get(self, path: str) -> tuple[int, str]:
        """Give status and text of one of its pages."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self, name: str) -> dict[tuple[str, ...], float]:
        """Give a metric's values by its labels' values, in the order of the labels' names."""
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
            if sample.name == name
        }

    def end(self) -> int:
        """Wait until it ends by itself; give its exit code."""
        assert self._process is not None
        return self._process.wait(START)

    def stop(self) -> int:
        """End it with SIGTERM; give its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(10)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
