"""Runs a program until it ends or the process that holds its input is gone; then ends its group.

    python guarded.py FOLDER PROGRAM [ARGUMENT ...]

It is a file of its own that imports nothing of Gyre, so that it costs no memory beside a server.
Its standard input is a pipe that stays empty: it ends with the process that holds it.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading


def end_all(folder: str) -> None:
    """The folder is gone, and so are this process and its whole group."""
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def end_with_input(folder: str) -> None:
    sys.stdin.buffer.read()
    end_all(folder)


def main() -> None:
    _, folder, *command = sys.argv
    # The whole group gets the signal; this process outlives the program to clean up after it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=end_with_input, args=(folder,), daemon=True).start()
    program.wait()
    # A server that ends may leave workers behind, which hold the device.
    end_all(folder)


if __name__ == "__main__":
    main()
