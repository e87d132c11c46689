"""What a user's type checker says: first programs pass mypy --strict, and mistakes do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "reference.md"]
PROMISES = """
import asyncio
from typing import Any, assert_type

from distributed_semaphore import AsyncSemaphore, ReleaseOutcome, Semaphore, Slot, Watch, add_listener

tasks, threads = AsyncSemaphore("export", limit=1), Semaphore("export", limit=1, lease=60)

@tasks.limit
async def fetch(url: str, *, tries: int = 3) -> bytes: return b""

@threads.limit
def read(path: str) -> int: return 1

def plain() -> int: return 1

async def undecorated(n: int) -> str: return ""

def promised() -> "asyncio.Future[str]": return asyncio.Future()

async def main() -> None:
    async with tasks as slot:
        assert_type(slot, Slot)
    async with tasks.slot(timeout=10, weight=2, priority=5) as slot:
        assert_type(slot.fence, int)
        assert_type(slot.remaining(), float)
    assert_type(await tasks.acquire(), Slot)
    assert_type(await tasks.try_acquire(), Slot | None)
    assert_type(await tasks.release(slot), ReleaseOutcome)
    assert_type(await tasks.call(plain), int)
    assert_type(await tasks.call(undecorated, 1), str)
    assert_type(await tasks.call(promised), str)
    assert_type(await fetch("url", tries=1), bytes)
    assert_type((await tasks.statistics()).held, int)

with threads.slot(on_lost=lambda: None) as held:
    assert_type(held, Slot)
assert_type(threads.acquire(timeout=1), Slot)
assert_type(threads.call(read, "path"), int)
assert_type(read("path"), int)
assert_type(AsyncSemaphore.from_resource("api"), AsyncSemaphore)
add_listener(lambda name, weight: Watch())
"""


def mypy(tmp_path: Path, program: str) -> list[str]:
    """Give mypy's complaints about a user's program, without the names of folders."""
    file = tmp_path / "program.py"
    file.write_text(program)
    # Silent about our own lines, as about those of any package that is installed.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "users")]
    environment = {"MYPYPATH": str(ROOT / "client"), "PATH": ""}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.stderr == ""
    return re.findall(r"program\.py:\d+: error: (.+)", ended.stdout) or (
        [] if ended.returncode == 0 else [ended.stdout]
    )


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("async def call_the_api(fence: int = 0) -> None: ...\n" + code, id=f"{page.stem} {number}")
        for page in PAGES
        for number, code in enumerate(re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL), start=1)
    ]
    + [pytest.param(path.read_text(), id=path.name) for path in sorted((ROOT / "examples").glob("*.py"))]
    + [pytest.param(PROMISES, id="every method")],
)
def test_a_users_program_passes_strictly(tmp_path: Path, program: str) -> None:
    assert "distributed_semaphore" in program
    assert mypy(tmp_path, program) == []


def test_mistakes_are_found_before_the_program_runs(tmp_path: Path) -> None:
    found = mypy(
        tmp_path,
        """
from distributed_semaphore import AsyncSemaphore, Semaphore
semaphore = AsyncSemaphore("export", limit="1")
@semaphore.limit
def plain() -> int: return 1
@Semaphore("export").limit
def read(path: str) -> int: return 1
read(1)
async def main() -> None:
    semaphore.acquire(1)
""",
    )
    expected = [
        'Argument "limit" to "AsyncSemaphore" has incompatible type "str"',
        'Argument 1 to "limit" of "AsyncSemaphore" has incompatible type',
        'Argument 1 to "read" has incompatible type "int"',
        "Too many positional arguments",
    ]
    assert len(found) >= len(expected)
    for words in expected:
        assert any(words in complaint for complaint in found), (words, found)
