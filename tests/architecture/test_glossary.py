"""The glossary has the names that the code has, each in its package, and no others."""

import ast
import re

import pytest
from tests.architecture.test_legibility import HOUSE_WORDS

CLASS = re.compile(r"`([A-Z]\w*)`")


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "words.md").read_text()


@pytest.fixture(scope="module")
def defined(modules):
    """By public class the packages that define it."""
    found: dict[str, set[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(module.subpackage)
    return found


def rows(page, heading):
    """The table of one section as lists of cells, without its two first lines."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def words(page):
    return rows(page, "The paper's words") + rows(page, "The field's words")


def test_every_class_on_the_page_exists(page, defined):
    assert set() == set(CLASS.findall(page)) - set(defined)


def test_every_package_has_its_main_class_on_the_page(page, defined, modules):
    packages = {module.subpackage for module in modules} - {"gyre", "__main__"}
    main = {
        package.strip("`"): named.strip("`") for package, named, _ in rows(page, "Main classes")
    }
    with_classes = {package for where in defined.values() for package in where}

    assert packages == set(main)
    assert packages - with_classes == {package for package, name in main.items() if name == "none"}
    assert {} == {
        package: name
        for package, name in main.items()
        if name != "none" and package not in defined[name]
    }


def test_a_class_named_like_its_package_is_the_main_one(page, defined):
    """`scheduler` has `Scheduler`, so the page may not call another one its main class."""
    main = {
        package.strip("`"): named.strip("`") for package, named, _ in rows(page, "Main classes")
    }
    alike = {
        package: name
        for package in main
        for name in [package.title()]
        if package in defined.get(name, set())
    }

    assert {"controller", "journal", "proxy", "scheduler", "trainer", "trajectory"} == set(alike)
    assert alike == {package: main[package] for package in alike}


def test_a_word_that_is_a_class_names_it(page, defined):
    assert [] == [
        f"{word}: {name}"
        for row in words(page)
        for word in row[0].split(", ")
        for name in ["".join(part.title() for part in re.split("[ -]", word))]
        if name in defined and name not in CLASS.findall(row[3])
    ]


def test_the_code_uses_every_word_and_symbol_on_the_page(page, modules):
    text = "\n".join(module.text for module in modules).lower().replace("_", " ")
    terms = [word for row in words(page) for word in row[0].split(", ")]
    symbols = re.findall(r"`([a-z]\w+)`", page.partition("## Symbols")[2])

    assert [] == [term for term in terms if not re.search(rf"\b{term}(s|es)?\b", text)]
    assert [] == [name for name in symbols if name.replace("_", " ") not in text]


def test_no_word_stands_twice(page):
    terms = [word for row in words(page) for word in row[0].split(", ")]

    assert sorted(set(terms)) == sorted(terms)


def test_the_page_has_no_word_of_the_house(page):
    assert set() == HOUSE_WORDS & set(re.findall(r"[a-z]+", page.lower()))
