import subprocess
import sys

IMPORTED = """
import sys
import gyre.run.proxy
from gyre.backends.renderers.package import create_renderer
print("openai" in sys.modules, callable(create_renderer))
import openai
print(openai.AsyncOpenAI.__module__.partition(".")[0])
"""
BEFORE = """
import openai
import gyre.backends.renderers.package
from renderers import client
print(client.AsyncOpenAI is openai.AsyncOpenAI)
"""


def said(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_a_proxy_imports_no_client_and_what_stood_in_for_it_is_gone():
    assert ["False", "True", "openai"] == said(IMPORTED)


def test_a_client_that_was_imported_before_is_left_alone():
    assert ["True"] == said(BEFORE)
