"""Take out of an image what the operator never imports of the kubernetes package, and see that nothing is missed.

Run by the environment's own Python, before bytecode is made: `python trim.py`. Of the package's 75 MB all but 3 are one
module for each API group and model, in two clients; each is imported when it is first asked for. The operator asks for
those that it names as `client.…`, which import the models that their answers may have.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = "semaphore_operator"
CLIENTS: Final = ("kubernetes.client", "kubernetes.aio.client")
ANSWER: Final = re.compile(r"""['"]\d{3}['"]: ["']([A-Z]\w+)["']""")
"""What the generated code of an API says of a reply: status and model, which it looks for by name."""


def imported() -> dict[str, Path]:
    """Import what the operator imports, and all that it names of a client; give the kubernetes package's modules."""
    from kubernetes.aio import client  # noqa: PLC0415  what is there is the question

    importlib.import_module(f"{PROGRAM}.__main__")
    folder = Path(str(sys.modules[PROGRAM].__file__)).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    for name in re.findall(r"\bclient\.([A-Z]\w+)", sources):
        getattr(client, name)
    return {
        name: Path(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith("kubernetes.") and module.__file__
    }


def generated() -> Iterator[Path]:
    """Give the generated modules that are here, of both clients."""
    for client in CLIENTS:
        [folder] = importlib.import_module(client).__path__
        yield from (path for part in ("api", "models") for path in Path(folder, part).glob("[!_]*.py"))


def check() -> None:
    """See that what is left is complete: it can be imported, and every model of an answer is there."""
    for name, path in imported().items():
        client, part, _ = name.rpartition(".api.")
        models = importlib.import_module(f"{client}.models") if part else None
        for model in ANSWER.findall(path.read_text()) if models else ():
            getattr(models, model)


def main() -> None:
    """Take them out, then check in a new process."""
    kept = set(imported().values())
    unused = [path for path in generated() if path not in kept]
    size = sum(path.stat().st_size for path in unused)
    for path in unused:
        path.unlink()
    print(f"took {len(unused)} modules out of the kubernetes package, {size / 1e6:.0f} MB")
    subprocess.run([sys.executable, __file__, "check"], check=True)


if __name__ == "__main__":
    check() if sys.argv[1:] == ["check"] else main()
