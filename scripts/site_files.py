"""Hooks of the site: whatever file of the repository a page links to comes along with the site.

Pages link to files as they lie in the repository, `../examples/run.toml` for one.
What lies outside of `docs` has its place under `files/` in the site, and links are told so.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
PLACE = "files"
"""Where in the site the rest of the repository has its place."""

CODE = re.compile(r"^```.*?^```$|(?<!`)`[^`\n]+`(?!`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = [Path(DOCS, file.src_uri) for file in files.documentation_pages()]
    while pages:
        page = pages.pop()
        for target in targets(page):
            if files.get_file_from_path(in_site(target)) is not None:
                continue
            added = File.generated(config, in_site(target), abs_src_path=str(ROOT / target))
            added.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(added)
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the page, from files of the repository to files of the site."""
    source = in_repository(page.file.src_uri)
    here = PurePosixPath(page.file.src_uri).parent

    def moved(link: re.Match[str]) -> str:
        target = resolved(source, link[1])
        return link[0] if target is None else f"]({os.path.relpath(in_site(target), here)}"

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])


def targets(page: Path) -> list[Path]:
    """Files of the repository that a page links to, where they exist."""
    text = CODE.sub("", (ROOT / page).read_text())
    found = (resolved(page, link) for link in LINK.findall(text))
    return [one for one in found if one is not None]


def resolved(page: Path, link: str) -> Path | None:
    """A link as a path from the root; None where no such file is there, which MkDocs reports."""
    target = Path(os.path.normpath(page.parent / link))
    return target if (ROOT / target).is_file() and ".." not in target.parts else None


def in_site(path: Path) -> str:
    inside = path.is_relative_to(DOCS)
    return (path.relative_to(DOCS) if inside else Path(PLACE, path)).as_posix()


def in_repository(uri: str) -> Path:
    path = Path(uri)
    return path.relative_to(PLACE) if path.is_relative_to(PLACE) else Path(DOCS, path)
