"""Writes a peer's requirement file: every package it needs, pinned, with hashes."""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path


def resolved(wanted: list[str], python: Path) -> dict[str, tuple[str, str]]:
    """Name to version and SHA-256, as pip would install them for one interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--dry-run"]
        command += ["--ignore-installed", f"--report={report}", *wanted]
        subprocess.run(command, check=True)
        found = {}
        for item in json.loads(report.read_text())["install"]:
            name = item["metadata"]["name"].lower().replace("_", "-")
            digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
            found[name] = (item["metadata"]["version"], digest)
        return found


def locked(wanted: list[str], pythons: list[Path]) -> str:
    """The text of the requirement file; versions come from the first Python and bind the rest."""
    first = resolved(wanted, pythons[0])
    pins = [f"{name}=={version}" for name, (version, _) in first.items()]
    digests = {name: {digest} for name, (_, digest) in first.items()}
    for python in pythons[1:]:
        for name, (_, digest) in resolved([*wanted, *pins], python).items():
            if name in digests:
                digests[name].add(digest)
    lines = [f"# {' '.join(wanted)}; written by benchmarks/peers/lock.py"]
    for name in sorted(first):
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests[name]))
        lines.append(f"{name}=={first[name][0]}{hashes}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("wanted", nargs="+", help="such as 'litellm[proxy]==1.106.2'")
    parser.add_argument(
        "--python", type=Path, action="append", required=True, help="an interpreter to lock for"
    )
    args = parser.parse_args()
    args.file.write_text(locked(args.wanted, args.python))


if __name__ == "__main__":
    main()
