"""The lock names exact versions with their hashes, and a full cache needs no network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from staging.cut import unshared
from staging.findings import VERSIONS
from staging.program import INSTALLER

LOCK = Path(__file__).parent / "lock"


def test_every_locked_package_has_a_hash_and_no_address() -> None:
    text = (LOCK / "package-lock.json").read_text()
    packages = {name: one for name, one in json.loads(text)["packages"].items() if name}
    assert 5 == len(packages)
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())
    assert "://" not in text


def test_every_locked_requirement_has_a_hash_and_no_address() -> None:
    text = (LOCK / "mini.txt").read_text()
    requirements = re.split(r"\n(?=[a-z])", text)
    assert any(one.startswith("mini-swe-agent==2.4.6 ") for one in requirements)
    assert all("==" in one and "--hash=sha256:" in one for one in requirements)
    assert "://" not in text


@pytest.mark.harness
def test_a_full_cache_needs_no_network(programs: Path) -> None:
    command = [*unshared(), sys.executable, str(INSTALLER)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert rows == VERSIONS
    where = subprocess.run([*command, "--where"], capture_output=True, text=True, check=True)
    assert str(programs) == where.stdout.strip()
