"""Rules that keep the package legible; what is counted may only fall, and its limit with it."""

import ast
import re
from collections import Counter, defaultdict
from graphlib import TopologicalSorter

SLIVER_LINES = 120
SLIVERS = {
    "gyre.batching.advantages": "the group-relative advantage, found by its name",
    "gyre.cli.status": "a command",
    "gyre.harnesses.declared": "an adapter",
    "gyre.sandboxes.local.seccomp": "the filter alone",
    "gyre.tasks.deepswe": "an adapter",
    "gyre.tasks.generated": "an adapter",
    "gyre.tasks.nl2repo": "an adapter",
    "gyre.trainer.distributed.pipeline_schedule": "the pure half of the pipeline",
    "gyre.transports.shared_memory": "an adapter",
}
"""Short modules with one importer in their own folder, and why they stand alone."""

PARTICIPLE = re.compile(r"[a-z]+(?:ing|ed)")
PARTICIPLE_MODULES = {
    "declared",
    "generated",
    "loading",
    "matching",
    "packing",
    "plotting",
    "sampling",
    "training",
}
"""Words of the field that end like a participle, or adapters' kinds as users write them."""
PARTICIPLE_CLASSES = {
    "Assessed",
    "Closed",
    "Ending",
    "Interrupted",
    "Launched",
    "Overloaded",
    "Prepared",
    "Published",
    "Resumed",
    "Setting",
    "Terminated",
    "Unauthorized",
}
"""Names of facts as they are stored, HTTP's words, and plain nouns."""
HOUSE_WORDS = {
    *("hall", "workshop", "staff", "desk", "hands", "nursery", "births", "crew", "shelf", "ferry"),
    *("keeper", "told", "lent", "spoken", "seen", "shown"),
}
SMALL_FOLDERS = {
    "gyre": "the package itself: what every process shares",
    "gyre.controller.training": "the training loop, apart from cells and executions",
    "gyre.inference": "its modules stand in engine, server, clients and external",
    "gyre.journal": "read everywhere, written in one place",
    "gyre.net": "what every process that listens shares",
    "gyre.sandboxes": "an adapter family, with a folder for each large adapter",
    "gyre.trainer.megatron": "an adapter",
    "gyre.trajectory": "the token tree, which the proxy and the trainer's side share",
}
"""Folders of few modules, and why they are not part of another."""
SMALL_FOLDER = 3
VAGUE_SUBJECTS = re.compile(r"\b(whoever|somebody|nobody|everybody|anybody)\b", re.IGNORECASE)
VAGUE_OPENINGS = {
    "gyre.cli.stop",
    "gyre.controller.command_executor",
    "gyre.controller.recovered_state",
    "gyre.controller.stop",
    "gyre.simulator.request",
}
"""Modules whose first sentence still hides its subject; none may be added."""
SAME_NAME = {"Markers"}
"""Public classes that a family of adapters has under one name."""

MOST_CALLBACKS = 14
"""Constructor parameters that are functions, in the whole package."""
MOST_WITH_CALLBACKS = 0
"""Classes with more than one such parameter, outside `aio` and `net`."""
MOST_LATE_ATTRIBUTES = 0
"""Attributes that a constructor declares and does not set."""
MOST_SHREDS = 160
"""Private functions of fewer than six lines with one caller in their module."""
MOST_VAGUE_WORDS = {
    "whoever": 10,
    "somebody": 8,
    "nobody": 44,
    "everybody": 1,
    "anybody": 4,
    "whatever": 4,
    "for one in": 191,
}
"""Words that hide which class does something."""


def importers(modules):
    """By module, the modules that import it or a name from it."""
    names = {module.name for module in modules}
    found = defaultdict(set)
    for module in modules:
        for one in module.imports:
            if (name := one.name if one.name in names else one.name.rpartition(".")[0]) in names:
                found[name].add(module.name)
    return found


def classes(modules):
    return [
        (module, node)
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def constructors(modules):
    return [
        node
        for module in modules
        for found in module.nodes
        if isinstance(found, ast.ClassDef)
        for node in found.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]


def callback_parameters(constructor):
    """Names of a constructor's parameters that are functions."""
    return [
        argument.arg
        for argument in constructor.args.args + constructor.args.kwonlyargs
        if argument.annotation is not None and "Callable" in ast.unparse(argument.annotation)
    ]


def is_package(module):
    return module.path.name == "__init__.py"


def test_short_modules_with_one_importer_have_a_reason(modules):
    found = importers(modules)
    slivers = {
        module.name
        for module in modules
        if not is_package(module) and module.text.count("\n") < SLIVER_LINES
        for by in [found[module.name]]
        if len(by) == 1 and module.name.rpartition(".")[0] == min(by).rpartition(".")[0]
    }

    assert set(SLIVERS) == slivers


def test_modules_are_not_named_by_a_lone_participle_or_a_house_word(modules):
    last = {module.name.rpartition(".")[2] for module in modules if not is_package(module)}

    assert PARTICIPLE_MODULES == {name for name in last if PARTICIPLE.fullmatch(name)}
    assert set() == {name for name in last if set(name.split("_")) & HOUSE_WORDS}


def test_small_folders_have_a_reason(modules):
    count = Counter(one.name.rpartition(".")[0] for one in modules if not is_package(one))

    assert set(SMALL_FOLDERS) == {folder for folder, many in count.items() if many <= SMALL_FOLDER}


def test_a_module_opens_with_its_subject(modules):
    vague = {
        module.name
        for module in modules
        if VAGUE_SUBJECTS.search((ast.get_docstring(module.tree) or "").partition("\n")[0])
    }

    assert set() == vague - VAGUE_OPENINGS


def test_classes_are_not_named_by_a_lone_participle_or_a_house_word(modules):
    names = {node.name for _, node in classes(modules)}
    lower = {name: re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower() for name in names}

    assert PARTICIPLE_CLASSES == {one for one in names if PARTICIPLE.fullmatch(lower[one])}
    assert set() == {one for one in names if set(lower[one].split("_")) & HOUSE_WORDS}


def test_a_public_class_name_means_one_thing(modules):
    count = Counter(node.name for _, node in classes(modules))

    assert SAME_NAME == {name for name, times in count.items() if times > 1}


def test_neither_packages_nor_modules_form_a_cycle(modules):
    packages = defaultdict(set)
    for module in modules:
        for one in module.imports:
            if one.package == "gyre" and not one.inside and one.subpackage != module.subpackage:
                packages[module.subpackage].add(one.subpackage)

    assert list(TopologicalSorter(packages).static_order())
    by_module = {name: by - {name} for name, by in importers(modules).items()}
    assert list(TopologicalSorter(by_module).static_order())


def test_constructors_take_objects(modules):
    callbacks = [name for node in constructors(modules) for name in callback_parameters(node)]
    late = [
        ast.unparse(statement.target)
        for node in constructors(modules)
        for statement in ast.walk(node)
        if isinstance(statement, ast.AnnAssign) and statement.value is None
        if isinstance(statement.target, ast.Attribute)
    ]

    many = [
        node
        for node in constructors([one for one in modules if one.subpackage not in {"aio", "net"}])
        if len(callback_parameters(node)) > 1
    ]

    assert MOST_CALLBACKS >= len(callbacks)
    assert MOST_WITH_CALLBACKS >= len(many)
    assert MOST_LATE_ATTRIBUTES >= len(late)


def test_functions_are_not_shredded(modules):
    shreds = [
        module.at(node.lineno)
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("_")
        if (node.end_lineno or 0) - node.lineno < 5
        if 2 == len(re.findall(rf"\b{node.name}\b", module.text))
    ]

    assert MOST_SHREDS >= len(shreds)


def test_vague_words_become_fewer(modules):
    text = "\n".join(module.text for module in modules).lower()
    counted = {word: len(re.findall(rf"\b{word}\b", text)) for word in MOST_VAGUE_WORDS}

    assert {} == {one: n for one, n in counted.items() if n > MOST_VAGUE_WORDS[one]}
