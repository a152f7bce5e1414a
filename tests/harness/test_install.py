"""Locks name exact versions with their hashes, and what is installed needs no network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from staging.cut import unshared
from staging.findings import VERSIONS
from staging.program import INSTALLER, NAMES

from gyre.harnesses.registry import LOCKS, lock_of, picked


def test_every_program_of_the_tests_has_a_lock() -> None:
    assert sorted(LOCKS.iterdir()) == sorted(lock_of(*picked(name)) for name in NAMES.values())


def test_every_locked_package_has_a_hash_and_no_address() -> None:
    for path in LOCKS.glob("*/package-lock.json"):
        text = path.read_text()
        packages = [one for name, one in json.loads(text)["packages"].items() if name]
        wanted = json.loads(path.with_name("package.json").read_text())["dependencies"]
        assert len(wanted) == len(packages)
        assert all(one["integrity"].startswith("sha512-") for one in packages)
        assert "://" not in text


def test_every_locked_requirement_has_a_hash_and_no_address() -> None:
    text = (LOCKS / "mini_swe_agent-2.4.6" / "requirements.txt").read_text()
    requirements = re.split(r"\n(?=[a-z])", text)
    assert any(one.startswith("mini-swe-agent==2.4.6 ") for one in requirements)
    assert all("==" in one and "--hash=sha256:" in one for one in requirements)
    assert "://" not in text


@pytest.mark.harness
def test_what_is_installed_needs_no_network(programs: Path) -> None:
    command = [*unshared(), sys.executable, str(INSTALLER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {
        tuple(line.split(maxsplit=2)[:2]): line.split(maxsplit=2)[2] for line in said.splitlines()
    }
    named = {name: picked(one) for name, one in NAMES.items()}
    assert rows == {
        (program.name, version): VERSIONS[name] for name, (program, version) in named.items()
    }
    where = subprocess.run([*command, "--where"], capture_output=True, text=True, check=True)
    assert str(programs) == where.stdout.strip()
