"""A test that leaves something open or changed fails, by name, and the next one does not."""

import os
import re
import subprocess
import sys

import pytest

CONFTEST = """
import pytest
from tests.isolation import GRACE_S, Isolation

ISOLATION = Isolation()

def pytest_configure(config):
    config.pluginmanager.register(ISOLATION)
    config.addinivalue_line("markers", "gpu: on a device")

@pytest.fixture(autouse=True)
def grace(request):
    ISOLATION._grace_s = GRACE_S if "that_ends" in request.node.name else 0.2
"""
LEAVING = """
import asyncio, os, select, signal, socket, subprocess, sys, threading, time

import pytest

KEPT = []
WAITING = "import os, time\\nwhile os.path.exists('waiting'): time.sleep(0.02)"

def test_a_thread():
    threading.Thread(target=time.sleep, args=[30], daemon=True, name="lasting").start()

def test_a_thread_that_ends():
    threading.Thread(target=time.sleep, args=[0.05]).start()

def test_a_thread_that_ends_with_a_descriptor_in_a_cycle():
    def leave():
        held = [select.epoll()]
        held.append(held)
        begun.set()
        time.sleep(0.1)

    begun = threading.Event()
    threading.Thread(target=leave).start()
    begun.wait()

def test_a_child():
    KEPT.append(subprocess.Popen([sys.executable, "-c", WAITING]))

def test_a_grandchild():
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WAITING!r}])"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_a_listener():
    KEPT.append(socket.create_server(("127.0.0.1", 0)))

def test_a_loop():
    KEPT.append(asyncio.new_event_loop())

def test_a_file():
    KEPT.append(open(__file__))

def test_a_variable():
    os.environ["GYRE_LEFT"] = "1"

def test_a_function():
    os.scandir = os.listdir

def test_a_signal():
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

@pytest.mark.gpu
def test_what_a_device_keeps():
    KEPT.append(socket.socketpair())

@pytest.fixture(scope="module")
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening

def test_a_wider_fixture_keeps_what_it_opened(server):
    pass

@pytest.fixture(scope="module")
def starter():
    script = "read line; sleep 600 & echo begun; read line; kill $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1, text=True) as process:
        yield process

def test_a_process_of_a_wider_fixture_starts_another(starter):
    print("now", file=starter.stdin, flush=True)
    assert "begun\\n" == starter.stdout.readline()

def test_and_nothing_is_changed_for_the_next():
    assert "GYRE_LEFT" not in os.environ and os.scandir is not os.listdir
"""
LEFT = {
    "test_a_thread": r"left open: thread lasting of sleep",
    "test_a_child": r"left open: process \d+ .*import os, time",
    "test_a_grandchild": r"left open: process \d+ .*import os, time",
    "test_a_listener": r"left open: descriptor \d+: socket:.* \(listens, port \d+\)",
    "test_a_loop": r"left open: descriptor \d+: anon_inode:\[eventpoll\]",
    "test_a_file": r"left open: descriptor \d+: /.*test_leaving.py",
    "test_a_variable": r"changed: os.environ: GYRE_LEFT: None -> '1'",
    "test_a_function": r"changed: os.scandir",
    "test_a_signal": r"changed: signal handlers: SIGUSR2",
}


@pytest.fixture(scope="module")
def printed(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("leaving")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "waiting").touch()
    (folder / "test_leaving.py").write_text(LEAVING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, "."],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    # What the run leaves on purpose ends now.
    (folder / "waiting").unlink()
    return done.stdout


@pytest.mark.parametrize(("name", "said"), LEFT.items())
def test_what_a_test_leaves_fails_it(printed, name, said):
    assert f"test_leaving.py::{name} leaves something behind" in printed
    assert re.search(rf"{name} leaves something behind:\n +{said}", printed)


def test_others_pass(printed):
    assert f"15 passed, {len(LEFT)} errors" in printed
