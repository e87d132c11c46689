"""The libraries that we compare ourselves with, each in an environment of its own in the user's cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
PATIENCE = 300.0
"""Seconds that an installation may take."""


class LeftOutError(Exception):
    """A library cannot be installed here; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library in the versions that are measured."""

    name: str
    packages: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    """The oldest Python that it supports."""
    node: bool = False
    """Whether it is an npm package."""


PEERS = (
    Peer("py-redis-semaphore", ("py-redis-semaphore==0.2.0", "redis==8.1.0", "hiredis==3.5.0")),
    Peer(
        "asyncio-advanced-semaphores",
        ("asyncio-advanced-semaphores==0.0.9", "redis==8.1.0", "hiredis==3.5.0"),
        python=(3, 12),
    ),
    Peer("steindamm", ("steindamm==0.11.1", "redis==8.1.0", "hiredis==3.5.0")),
    Peer("self-limiters", ("self-limiters==0.4.0",)),
    Peer("redis-semaphore (npm)", ("redis-semaphore@5.8.0", "ioredis@6.0.0"), node=True),
    Peer("ours"),
)


def command(peer: Peer, say: Callable[[str], None]) -> tuple[list[str], dict[str, str]]:
    """Give the command of a library's worker and its environment, after installing what is missing.

    Raises:
        LeftOutError: it cannot be installed here.
    """
    if not peer.packages:
        return [sys.executable, str(HERE / "worker.py"), peer.name], dict(os.environ)
    pins = " ".join(peer.packages)
    folder = _cache() / pins.replace("/", "_").replace(" ", "+")
    if not (folder / "installed").exists():
        say(f"installing {pins}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            _install(peer, folder)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            raise LeftOutError(f"it could not be installed: {said.strip().splitlines()[-1]}") from error
        (folder / "installed").touch()
    if peer.node:
        return ["node", str(HERE / "worker.js"), peer.name], {**os.environ, "NODE_PATH": str(folder / "node_modules")}
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return [str(folder / "bin/python"), str(HERE / "worker.py"), peer.name], alone


def _install(peer: Peer, folder: Path) -> None:
    if peer.node:
        if not shutil.which("npm"):
            raise LeftOutError("there is no npm on PATH")
        _run("npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), *peer.packages)
        return
    _run(_python(peer.python), "-m", "venv", str(folder))
    pip = (str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "install", *peer.packages)


def _python(oldest: tuple[int, int]) -> str:
    """Find an interpreter that is new enough: this one, one on PATH, or one that pyenv has."""
    candidates = [sys.executable, *(f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4))]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    candidates += [str(path) for path in sorted(pyenv.glob("versions/3.*/bin/python"))]
    for candidate in candidates:
        try:
            said = _run(candidate, "-c", "import sys; print(*sys.version_info[:2])")
        except (OSError, subprocess.SubprocessError):
            continue
        if tuple(map(int, said.split())) >= oldest:
            return candidate
    raise LeftOutError(f"it needs Python {oldest[0]}.{oldest[1]} or newer, and none was found on PATH")


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "semaphore-operator/peers"
