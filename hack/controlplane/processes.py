"""Starts server programs so that none outlives its owner, with a log file each."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.errors import ControlPlaneError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WATCHDOG = Path(__file__).with_name("watchdog.py")
# How often a condition is looked at while a program starts, seconds.
POLL = 0.05


class StartError(ControlPlaneError):
    """A program ended, or was not ready in time; `log` is the end of what it wrote."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"{reason}\n{log}")
        self.log = log


class Group:
    """A group of server processes with a watchdog that kills them, and removes `doomed`, if this process dies.

    It does not get the signals of a terminal: Ctrl-C reaches the owner alone, who decides.
    """

    def __init__(self, logs: Path, doomed: Path | None = None) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        command: list[str | Path] = [sys.executable, "-S", "-E", WATCHDOG, *([doomed] if doomed else [])]
        self._watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)

    def start(self, command: Sequence[str | Path]) -> None:
        """Start a program, in the background; its name is that of its file, and its log is added to `<name>.log`."""
        name = Path(command[0]).name
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=self._logs,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._watchdog.pid,
            )

    def wait_until(self, name: str, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until `ready()`; raise StartError if the program ends before, or `timeout` seconds pass."""
        deadline = time.monotonic() + timeout
        process = self._processes[name]
        while not ready():
            if process.poll() is not None:
                raise StartError(f"{name} ended with status {process.returncode}; its log ends:", self.tail(name))
            if time.monotonic() > deadline:
                reason = f"{name} is not ready after {timeout:.0f} s; its log ({self._log(name)}) ends:"
                raise StartError(reason, self.tail(name))
            time.sleep(POLL)

    def kill(self, name: str) -> None:
        """End one program as a crash would: at once, with its connections."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def pids(self) -> dict[str, int]:
        """Process ids of the running programs by name, the watchdog among them."""
        running = {"watchdog": self._watchdog} | self._processes
        return {name: process.pid for name, process in running.items() if process.poll() is None}

    def close(self) -> None:
        """End every program and the watchdog at once. Nothing is written back: what they keep is thrown away."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._watchdog.pid, signal.SIGKILL)
        for process in (*self._processes.values(), self._watchdog):
            process.wait()
        if self._watchdog.stdin:
            self._watchdog.stdin.close()
        self._processes.clear()

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of a program's log."""
        path = self._log(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(no log)"

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that nobody listens on at this moment.

    Another program may take one before it is used: who starts a server on it must be ready to try others.
    """
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
