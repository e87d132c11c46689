"""Ends a control plane whose owner died; a program of its own, started by processes.py.

It leads the process group of the servers and waits for its standard input to close, which happens when the owner ends
in any way, SIGKILL included. (PR_SET_PDEATHSIG would tie the servers to one thread of the owner instead.)
"""

import os
import shutil
import signal
import sys


def main() -> None:
    """Wait for the owner's end, then kill the group and remove the folder named by the first argument, if any."""
    sys.stdin.buffer.read()
    group = os.getpgrp()
    if os.fork() == 0:
        os.setsid()  # out of the group, to outlive it by the moment that the folder takes
        os.killpg(group, signal.SIGKILL)
        for folder in sys.argv[1:]:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
