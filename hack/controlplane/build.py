"""Builds the programs of a control plane from the Go module proxy, once, and keeps them outside the tree."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.errors import BuildError
from controlplane.programs import PROGRAMS, Program, build_flags, cache
from controlplane.progress import Display, clock, display
from controlplane.toolchain import find_go

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def binary(name: str) -> Path:
    """Return the path of a program, building it first if it is not cached.

    With $KUBEBUILDER_ASSETS set, the programs that its folder has are taken from there.
    Raises BuildError if the name is unknown or the build fails.
    """
    return binaries([name])[name]


def binaries(names: Iterable[str]) -> dict[str, Path]:
    """Return the paths of several programs, building those that are missing, one build for each go.mod.

    Building them together is quicker than one by one: they share most packages, and one links while others compile.
    """
    found: dict[str, Path] = {}
    missing: dict[Path, list[Program]] = {}
    for name in names:
        if name not in PROGRAMS:
            raise BuildError(f"There is no program {name!r}; there are {', '.join(PROGRAMS)}.")
        program = PROGRAMS[name]
        path = from_assets(name) or program.cached
        if path.exists():
            found[name] = path
        else:
            missing.setdefault(program.module, []).append(program)
    for module, programs in missing.items():
        found |= _build(module, programs)
    return found


def from_assets(name: str) -> Path | None:
    """Return a program that $KUBEBUILDER_ASSETS has, None if it has not or is not set."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(folder, name) if folder else None
    return path if path and path.exists() else None


def _build(module: Path, programs: list[Program]) -> dict[str, Path]:
    """Build programs of one go.mod; a lock keeps it to one build at a time, and the others then find its result."""
    folder = programs[0].cached.parent
    folder.mkdir(parents=True, exist_ok=True)
    with _lock():
        wanted = [program for program in programs if not program.cached.exists()]
        if wanted:
            # What an interrupted build left behind; nobody else builds while the lock is ours.
            for leftover in folder.glob(".build-*"):
                shutil.rmtree(leftover)
            # Compilers that are being killed may still write; the next build removes what they leave.
            with tempfile.TemporaryDirectory(dir=folder, prefix=".build-", ignore_cleanup_errors=True) as output:
                _compile(module, wanted, Path(output))
                for program in wanted:
                    # The rename is atomic, so a program that is there is whole.
                    Path(output, program.built_as).rename(program.cached)
    return {program.name: program.cached for program in programs}


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    path = cache() / ".lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Another process is building: waiting until it is done (lock {path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(module: Path, programs: list[Program], output: Path) -> None:
    go = find_go(cache())
    _say(f"Building {', '.join(f'{program.name} {program.version}' for program in programs)}")
    _say("This happens once, and takes some minutes (a whole control plane: about 6 on 2 idle cores).")
    started = time.monotonic()
    packages = [program.package for program in programs]
    flags = build_flags(module)
    with display() as shown:
        step = _Step(shown, module, scratch=output)
        template = "{{if .Stale}}{{.ImportPath}}{{end}}"
        stale = step.run("downloading modules", [go, "list", *flags, "-deps", "-f", template, *packages])
        step.run("compiling", [go, "build", "-v", *flags, "-o", f"{output}/", *packages], expected=set(stale.split()))
    _say(f"Built in {clock(time.monotonic() - started)}, kept in {output.parent}")


class _Step:
    """Runs one `go` command after the other, showing how far it is by the lines that it writes to standard error."""

    def __init__(self, shown: Display, module: Path, scratch: Path) -> None:
        self._shown = shown
        self._module = module
        # A laxer garbage collector saves the compiler 6 % of its CPU. No go.work of a folder above may join in.
        # Go's temporary files go with the scratch folder, however the build ends.
        settings = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTMPDIR": str(scratch)}
        self._environment = {"GOGC": "400"} | os.environ | settings
        self._done = 0
        self._said: deque[str] = deque(maxlen=30)

    def run(self, phase: str, command: list[str | Path], expected: set[str] | None = None) -> str:
        """Run a command and return its standard output; raise BuildError with its last lines if it fails.

        Lines named in `expected` are counted as steps done; without it, every line is one.
        """
        self._done = 0
        self._said.clear()
        with (
            tempfile.TemporaryFile("w+") as answer,
            subprocess.Popen(
                command,
                cwd=self._module,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            ) as process,
        ):
            reader = threading.Thread(target=self._read, args=(process, expected), daemon=True)
            reader.start()
            total = len(expected or ())
            try:
                while process.poll() is None:
                    self._shown.show("linking" if 0 < total <= self._done else phase, self._done, total)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=0.2)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # the compilers with it
                raise
            reader.join()
            if process.returncode != 0:
                raise BuildError(f"`go {command[1]}` failed while {phase}:\n{''.join(self._said).rstrip()}")
            answer.seek(0)
            return answer.read()

    def _read(self, process: subprocess.Popen[str], expected: set[str] | None) -> None:
        for line in process.stderr or ():
            if expected is None or line.strip() in expected:
                self._done += 1
            if expected is None or line.strip() not in expected:
                self._said.append(line)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
