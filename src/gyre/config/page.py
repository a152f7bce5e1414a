"""The reference of every table and key, as lines of a page."""

from collections.abc import Iterator

from gyre.config.explain import default_of
from gyre.config.settings import Section, Setting, sentence_of, settings, tables, tag_of


def reference() -> Iterator[str]:
    """In the order of the tables; alternatives stand below each other."""
    for name, table in tables().items():
        yield from _table(name, table)


def _table(name: str, table: Setting) -> Iterator[str]:
    yield from ("", f"### [{name}]", "")
    if len(table.sections) == 1:
        yield from _keys(table.sections[0])
        return
    for number, section in enumerate(table.sections):
        if number:
            yield ""
        yield from (f'With `kind = "{tag_of(section)}"`:', "")
        yield from _keys(section)


def _keys(section: Section) -> Iterator[str]:
    yield from (
        sentence_of(section),
        "",
        "| key | value | default | what it is |",
        "|---|---|---|---|",
    )
    for one in settings(section).values():
        default = default_of(one)
        told = default if default in ("required", "not set") else f"`{default}`"
        yield f"| `{one.name}` | {one.expected} | {told} | {one.says} |".replace("*", "\\*")
