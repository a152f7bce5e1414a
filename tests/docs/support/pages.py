"""Pages as tests read them: their blocks of code, their links, their headings."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[3]
FOLDERS = ("docs", "tests", "benchmarks", "examples")
INSTRUCTION = "instruction.md"
"""What an agent is asked is no page of ours."""

_BLOCK = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r'(?<!\\)\]\(([^)\s]+)(?: "[^"]*")?\)')
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind its fence, its lines, and where it begins."""

    info: str
    text: str
    where: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def is_file(self) -> bool:
        """It has a name, and is one of several files that are tried together."""
        return "title=" in self.info


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(one for name in FOLDERS for one in (ROOT / name).rglob("*.md"))]
    return sorted(one for one in found if one.name != INSTRUCTION)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            info=found[2],
            text=dedent(found[3]),
            where=f"{name(page)}:{text.count(chr(10), 0, found.start()) + 1}",
        )
        for found in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """Everything but blocks."""
    return _BLOCK.sub("", page.read_text())


def spans(page: Path) -> list[str]:
    """What stands between backticks."""
    return _SPAN.findall(prose(page))


def links(page: Path) -> list[str]:
    return _LINK.findall(_SPAN.sub("", prose(page)))


@cache
def anchors(page: Path) -> set[str]:
    """As code hosts make them of headings."""
    found = []
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    assert len(set(found)) == len(found), f"{name(page)}: two headings with one anchor"
    return set(found)
