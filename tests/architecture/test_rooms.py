"""The rules of the house: doors, guests, pure rooms, sizes, and one sentence per module."""

import ast
import sys

import pytest

DOORS: dict[str, set[str]] = {
    "words": set(),
    "config": {"words"},
    "durable": set(),
    "folders": set(),
    "checksums": set(),
    "version": set(),
    "frames": {"words", "checksums"},
    "calls": {"words", "frames"},
    "journal": {"words", "durable", "frames"},
    "commits": {"words", "frames", "calls"},
    "plan": {"words"},
    "rollout": {"words", "durable", "folders"},
    "evaluate": {"words"},
    "tree": {"words", "calls"},
    "proxy": {"words", "version", "durable", "tree", "calls", "commits"},
    "stream": {"words", "tree", "calls"},
    "model": {"words", "durable"},
    "engine": {"words", "model"},
    "train": {"words", "model"},
    "backends": {"words", "folders", "model", "engine", "train"},
    "testing": {"words", "model", "engine", "train"},
    "sim": {"words", "journal", "plan", "stream"},
    "watch": {"words", "durable", "calls", "journal", "plan", "tree"},
    "run": {
        "words",
        "version",
        "config",
        "durable",
        "folders",
        "plan",
        "calls",
        "commits",
        "journal",
        "rollout",
        "evaluate",
        "tree",
        "proxy",
        "stream",
        "model",
        "engine",
        "train",
        "backends",
        "sim",
        "watch",
    },
    "cli": {"words"},
    "__main__": {"cli"},
    "gyre": set(),
}
"""Which rooms a room may import; a room may always import itself."""

OPEN_INSIDE_FUNCTIONS = {"cli"}
"""Rooms whose functions may import any other, so that a light command loads only what it needs."""

GUESTS: dict[str, set[str]] = {
    "gyre": set(),
    "gyre.words.packs": {"numpy"},
    "gyre.config.schema": {"pydantic"},
    "gyre.calls": {"msgspec"},
    "gyre.journal": {"msgspec"},
    "gyre.rollout": {"msgspec"},
    "gyre.rollout.execution": set(),
    "gyre.tree": {"numpy"},
    "gyre.proxy": {"msgspec", "xxhash"},
    "gyre.proxy.session": {"numpy"},
    "gyre.proxy.compose": {"numpy"},
    "gyre.stream": {"numpy"},
    "gyre.model": {"numpy", "torch"},
    "gyre.model.network": {"torch", "transformers"},
    "gyre.model.load": {"torch", "transformers"},
    "gyre.model.known": set(),
    "gyre.model.description": set(),
    "gyre.model.manifest": {"xxhash"},
    "gyre.model.weights": {"safetensors", "torch", "xxhash"},
    "gyre.model.checkpoint": {"safetensors", "torch"},
    "gyre.model.gguf": {"numpy"},
    "gyre.model.smollm2": {"numpy", "safetensors", "tokenizers", "torch"},
    "gyre.engine": {"numpy", "torch"},
    "gyre.engine.cache": set(),
    "gyre.engine.batch": set(),
    "gyre.engine.carried": {"numpy", "safetensors", "torch"},
    "gyre.engine.completions": {"msgspec"},
    "gyre.engine.controls": {"msgspec", "torch"},
    "gyre.engine.native": {"msgspec"},
    "gyre.engine.lent": {"msgspec", "torch"},
    "gyre.engine.launching": {"triton"},
    "gyre.engine.reading": {"torch", "triton"},
    "gyre.engine.serve": set(),
    "gyre.engine.told": set(),
    "gyre.engine.weighing": {"torch", "triton"},
    "gyre.engine.wire": {"msgspec"},
    "gyre.train": {"numpy", "torch"},
    "gyre.train.between": {"msgspec", "torch", "xxhash"},
    "gyre.backends.clusters": set(),
    "gyre.backends.clusters.ray": {"ray"},
    "gyre.backends.clusters.ray_spots": {"ray"},
    "gyre.backends.engines": {"aiohttp", "msgspec"},
    "gyre.backends.engines.asked": {"numpy", "orjson"},
    "gyre.backends.engines.embedded": {"torch"},
    "gyre.backends.engines.child": set(),
    "gyre.backends.engines.guarded": set(),
    "gyre.backends.engines.launch": set(),
    "gyre.backends.engines.remote": {"torch"},
    "gyre.backends.engines.served": {"torch"},
    "gyre.backends.engines.sglang_group": {"torch"},
    "gyre.backends.engines.sglang_remote": {"aiohttp", "msgspec", "torch"},
    "gyre.backends.engines.vllm_remote": {"aiohttp", "msgspec", "safetensors", "torch"},
    "gyre.backends.engines.vllm_weights": {"safetensors", "torch", "vllm"},
    "gyre.backends.engines.wire": {"aiohttp", "msgspec", "orjson"},
    "gyre.backends.tasks": {"msgspec"},
    "gyre.backends.renderers.tokens": {"tokenizers"},
    "gyre.backends.renderers.package": {"renderers"},
    "gyre.backends.trackers.mlflow": {"mlflow"},
    "gyre.backends.trackers.tensorboard": {"tensorboardX"},
    "gyre.backends.trackers.trackio": {"trackio"},
    "gyre.backends.trackers.wandb": {"wandb"},
    "gyre.backends.trainers": {"torch"},
    "gyre.backends.trainers.megatron_layers": {"megatron", "torch"},
    "gyre.backends.transports.mooncake": {"mooncake"},
    "gyre.backends.transports.moving": {"numpy", "xxhash"},
    "gyre.backends.transports.sheet": {"msgspec"},
    "gyre.sim": {"numpy"},
    "gyre.sim.plots": {"matplotlib"},
    "gyre.testing.tokenizer": {"tokenizers"},
    "gyre.testing.computed": {"torch"},
    "gyre.testing.steered": {"tokenizers", "torch"},
    "gyre.testing.engine_server": {"msgspec", "tokenizers", "uvicorn"},
    "gyre.watch.drawn": {"numpy"},
    "gyre.watch.jsonlines": {"numpy", "orjson"},
    "gyre.watch.flat": {"numpy", "safetensors"},
    "gyre.watch.parquet": {"pyarrow"},
    "gyre.watch.report": {"matplotlib"},
    "gyre.run.cell": {"msgspec", "torch", "uvloop"},
    "gyre.run.carried_over": {"msgspec", "numpy"},
    "gyre.run.cell_orders": {"msgspec", "torch"},
    "gyre.run.cell_weights": {"torch"},
    "gyre.run.cell_wire": {"msgspec"},
    "gyre.run.cells": {"aiohttp", "msgspec"},
    "gyre.run.claims": {"msgspec", "numpy", "safetensors"},
    "gyre.run.staff": {"aiohttp"},
    "gyre.run.desk": {"msgspec"},
    "gyre.run.devices": {"pynvml"},
    "gyre.run.learning": {"torch"},
    "gyre.run.shown": {"torch"},
    "gyre.run.page": {"msgspec"},
    "gyre.run.plan_file": {"msgspec"},
    "gyre.run.proxied": {"aiohttp"},
    "gyre.run.rank": {"msgspec", "torch"},
    "gyre.run.rank_orders": {"msgspec"},
    "gyre.run.rank_part": {"torch"},
    "gyre.run.rank_weights": {"safetensors", "torch"},
    "gyre.run.ranked_copies": {"torch"},
    "gyre.run.ranked_followers": {"msgspec"},
    "gyre.run.rollout_before": {"msgspec"},
    "gyre.run.rollout_results": {"msgspec"},
    "gyre.run.state_files": {"safetensors", "torch"},
    "gyre.run.state_manifest": {"msgspec"},
    "gyre.run.rollout_run": {"aiohttp", "uvloop"},
    "gyre.run.train": {"uvloop"},
    "gyre.run.listen": {"uvicorn"},
    "gyre.run.proxy": {"aiohttp", "msgspec", "uvloop"},
    "gyre.run.proxying": {"aiohttp"},
    "gyre.run.sharding": {"aiohttp"},
    "gyre.run.supervise": {"msgspec"},
    "gyre.run.serve": {"tokenizers", "uvloop"},
    "gyre.run.showing": {"uvloop"},
}
"""Third-party packages a module may import; the longest matching name decides."""

PURE = [
    "gyre.words",
    "gyre.plan",
    "gyre.rollout.execution",
    "gyre.evaluate.assess",
    "gyre.evaluate.report",
    "gyre.evaluate.score",
    "gyre.evaluate.spread",
    "gyre.tree",
    "gyre.proxy.session",
    "gyre.proxy.history",
    "gyre.proxy.keys",
    "gyre.proxy.place",
    "gyre.proxy.trails",
    "gyre.proxy.compose",
    "gyre.proxy.dialect",
    "gyre.proxy.fields",
    "gyre.proxy.messages",
    "gyre.proxy.chat",
    "gyre.proxy.responses",
    "gyre.proxy.items",
    "gyre.proxy.sse",
    "gyre.proxy.breaker",
    "gyre.proxy.sampled",
    "gyre.stream",
    "gyre.sim",
    "gyre.engine.cache",
    "gyre.engine.batch",
    "gyre.train.schedule",
    "gyre.backends.transports.cuts",
    "gyre.backends.transports.sheet",
    "gyre.watch.account",
    "gyre.watch.ages",
    "gyre.watch.board",
    "gyre.watch.branches",
    "gyre.watch.chains",
    "gyre.watch.curve",
    "gyre.watch.expected",
    "gyre.watch.histograms",
    "gyre.watch.listing",
    "gyre.watch.moment",
    "gyre.watch.newest",
    "gyre.watch.panels",
    "gyre.watch.panels_cells",
    "gyre.watch.panels_demand",
    "gyre.watch.panels_steps",
    "gyre.watch.panels_use",
    "gyre.watch.panels_work",
    "gyre.watch.phases",
    "gyre.watch.seen",
    "gyre.watch.signs",
    "gyre.watch.sizes",
    "gyre.watch.story",
    "gyre.watch.story_cells",
    "gyre.watch.story_faults",
    "gyre.watch.story_held_out",
    "gyre.watch.story_steps",
    "gyre.watch.story_work",
    "gyre.watch.stretches",
    "gyre.watch.spoken",
    "gyre.watch.summary",
    "gyre.watch.thinning",
    "gyre.watch.timeline",
    "gyre.watch.uses",
    "gyre.watch.view",
]
"""Modules that take time, randomness and bytes as arguments and touch nothing outside."""

IMPURE_MODULES = {
    "asyncio", "datetime", "http", "io", "logging", "os", "pathlib", "random", "secrets",
    "selectors", "shutil", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
    "urllib", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input"}
ALLOWED_IN_PURE = {"random.Random"}
"""A class that is only as random as the seed it is given."""

BANNED_NAMES = {"utils", "util", "helpers", "common", "misc", "base", "manager"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec"}

BROAD_EXCEPTS: dict[str, int] = {"gyre.backends.trackers.aside": 1}
"""Modules that may catch everything, and in how many places."""

MOST_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_SENTENCE = 100


def within(name, prefix):
    return name == prefix or name.startswith(prefix + ".")


def is_pure(module):
    return any(within(module.name, prefix) for prefix in PURE)


def called(tree):
    """Plain names that are called, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def test_every_room_has_its_doors_listed(modules):
    assert set() == {module.room for module in modules} - set(DOORS)


def test_rooms_are_entered_through_their_doors(modules):
    wrong = []
    for module in modules:
        for one in module.imports:
            if one.package != "gyre":
                continue
            free = one.inside and module.room in OPEN_INSIDE_FUNCTIONS
            if not (free or one.room == module.room or one.room in DOORS[module.room]):
                wrong.append(f"{module.at(one.line)}: {module.room} may not import {one.name}")

    assert [] == wrong


def test_only_commands_import_inside_functions(modules):
    assert [] == [
        f"{module.at(one.line)}: {one.name}"
        for module in modules
        for one in module.imports
        if one.inside and module.room not in OPEN_INSIDE_FUNCTIONS
    ]


def test_third_party_packages_are_guests_where_they_are_invited(modules):
    wrong = []
    for module in modules:
        home = max((name for name in GUESTS if within(module.name, name)), key=len)
        for one in module.imports:
            if one.package == "gyre" or one.package in sys.stdlib_module_names:
                continue
            if one.package not in GUESTS[home]:
                wrong.append(f"{module.at(one.line)}: {one.package} is no guest of {home}")

    assert [] == wrong


def test_pure_rooms_exist_and_touch_nothing_outside(modules):
    pure = [module for module in modules if is_pure(module)]
    wrong = [
        f"{module.at(one.line)}: imports {one.name}"
        for module in pure
        for one in module.imports
        if one.package in IMPURE_MODULES and one.name not in ALLOWED_IN_PURE
    ] + [
        f"{module.at(line)}: calls {name}"
        for module in pure
        for name, line in called(module.tree)
        if name in IMPURE_CALLS
    ]

    assert [] == wrong
    assert [] == [name for name in PURE if not any(within(m.name, name) for m in pure)]


def test_modules_stay_short(modules):
    assert [] == [
        f"{module.at(1)}: {lines} lines"
        for module in modules
        if (lines := module.text.count("\n")) >= MOST_LINES
    ]


def test_functions_stay_short(modules):
    assert [] == [
        f"{module.at(function.lineno)}: {function.name} has {lines} lines"
        for module in modules
        for function in module.functions
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MOST_FUNCTION_LINES
    ]


def test_a_module_opens_with_one_sentence(modules):
    wrong = []
    for module in modules:
        first = (ast.get_docstring(module.tree) or "").split("\n")[0]
        if not first.endswith(".") or len(first) > MOST_SENTENCE or ". " in first:
            wrong.append(f"{module.at(1)}: {first!r}")

    assert [] == wrong


def test_module_names_say_what_is_inside(modules):
    assert [] == [module.name for module in modules if set(module.name.split(".")) & BANNED_NAMES]


def test_nothing_read_from_outside_can_run_as_code(modules):
    wrong = [
        f"{module.at(one.line)}: imports {one.name}"
        for module in modules
        for one in module.imports
        if one.package in UNSAFE_MODULES or one.name == "torch.load"
    ] + [
        f"{module.at(line)}: calls {name}"
        for module in modules
        for name, line in called(module.tree)
        if name in UNSAFE_CALLS
    ]
    wrong += [module.name for module in modules if "torch.load" in module.text]

    assert [] == wrong


def test_everything_is_caught_only_where_it_is_reported(modules):
    found = {}
    for module in modules:
        broad = sum(
            isinstance(node, ast.ExceptHandler) and catches_everything(node.type)
            for node in ast.walk(module.tree)
        )
        if broad:
            found[module.name] = broad

    assert BROAD_EXCEPTS == found


def catches_everything(caught):
    match caught:
        case None:
            return True
        case ast.Tuple(elts=parts):
            return any(catches_everything(part) for part in parts)
        case ast.Name(id=name):
            return name in {"Exception", "BaseException"}
        case _:
            return False


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("except:", True),
        ("except Exception:", True),
        ("except (OSError, BaseException):", True),
        ("except OSError:", False),
    ],
)
def test_the_count_of_broad_handlers_sees_every_spelling(source, expected):
    (handler,) = ast.parse(f"try: pass\n{source} pass").body[0].handlers

    assert expected == catches_everything(handler.type)
