"""The model `tiny` made anew by its script, and what replies it gives; run by hand, for minutes.

    python -m tests.model.support.tiny_again

What comes of it is kept beside this file with the digest of the script that it is of.
"""

import hashlib
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from pathlib import Path

from benchmarks.covered import said_in

SCRIPT = Path(__file__).parents[3] / "scripts" / "tiny"
RECORD = Path(__file__).with_name("remade.json")
SEED = 0
MEASURED = {"prompts": 400, "seed": 2}


def load_script():
    """The script as a module."""
    loader = SourceFileLoader("tiny_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader("tiny_script", loader)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up, and no cache belongs beside a script.
    sys.modules["tiny_script"] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def digest():
    """Of the script as syntax, so that what it imports may move."""
    return hashlib.sha256("\n".join(said_in(SCRIPT)).encode()).hexdigest()[:16]


def measured(script, folder, **changes):
    """What a model in a folder is like."""
    return script.measure(folder, **MEASURED | changes)


def write(script, folder):
    found = {"script": digest(), "seed": SEED, "measured": asdict(measured(script, folder))}
    RECORD.write_text(json.dumps(found, indent=2) + "\n")


def main():
    script = load_script()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "tiny"
        script.make(made, SEED)
        write(script, made)


if __name__ == "__main__":
    main()
