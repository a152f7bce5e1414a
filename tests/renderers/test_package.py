import subprocess
import sys

from tests.waiting import PATIENCE_S

IMPORTED = """
import sys
import gyre.proxy.main
from gyre.renderers.families import create_renderer
print(*sorted({"httpx", "openai"} & set(sys.modules)), callable(create_renderer))
from renderers.client import generate
print("openai" in sys.modules, generate.__module__)
"""
BEFORE = """
from renderers import OverlongPromptError, client
import gyre.renderers.families
from renderers.client import generate
print(OverlongPromptError is client.OverlongPromptError, generate is client.generate)
"""


def said(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return done.stdout.split()


def test_a_proxy_imports_no_client_and_what_stood_in_for_it_is_gone():
    assert ["True", "True", "renderers.client"] == said(IMPORTED)


def test_a_client_that_was_imported_before_is_left_alone():
    assert ["True", "True"] == said(BEFORE)
