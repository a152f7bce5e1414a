"""Which package imports which, what is pure, how long modules are, and their first sentence."""

import ast
import sys

import pytest

ALLOWED_IMPORTS: dict[str, set[str]] = {
    "types": set(),
    "config": {"types"},
    "storage": {"types"},
    "journal": {"types", "storage"},
    "aio": set(),
    "net": {"types"},
    "version": set(),
    "scheduler": {"types"},
    "trajectory": {"types", "storage"},
    "harnesses": {"types", "config"},
    "tasks": {"types", "config"},
    "renderers": {"types", "model"},
    "rewards": {"types", "config", "storage"},
    "sandboxes": {"types", "storage", "aio"},
    "rollout": {"types", "config", "storage", "aio", "harnesses", "rewards", "sandboxes"},
    "batching": {"types", "storage", "trajectory"},
    "model": {"types", "storage"},
    "inference": {"types", "config", "storage", "aio", "net", "model", "transports"},
    "trainer": {"types", "config", "model"},
    "transports": {"types", "config"},
    "cell": {
        "types",
        "config",
        "storage",
        "aio",
        "net",
        "batching",
        "model",
        "inference",
        "trainer",
        "transports",
        "cluster",
    },
    "cluster": {"types", "config", "aio"},
    "proxy": {
        "types",
        "config",
        "storage",
        "aio",
        "net",
        "version",
        "trajectory",
        "harnesses",
        "renderers",
        "rollout",
        "inference",
    },
    "controller": {
        "types",
        "config",
        "storage",
        "journal",
        "aio",
        "net",
        "version",
        "scheduler",
        "trajectory",
        "harnesses",
        "tasks",
        "rollout",
        "batching",
        "model",
        "cell",
        "cluster",
        "proxy",
    },
    "evals": {
        "types",
        "config",
        "storage",
        "journal",
        "aio",
        "net",
        "trajectory",
        "tasks",
        "rewards",
        "rollout",
        "model",
        "cell",
        "cluster",
        "proxy",
        "controller",
    },
    "simulator": {"types", "config", "journal", "scheduler", "batching"},
    "observability": {
        "types",
        "config",
        "storage",
        "journal",
        "aio",
        "net",
        "scheduler",
        "trajectory",
        "renderers",
        "rewards",
        "rollout",
        "model",
        "cluster",
        "simulator",
    },
    "export": {"types", "storage", "trajectory", "rewards", "rollout"},
    "testing": {"types", "config", "net", "model", "inference", "trainer"},
    "cli": {"types", "config"},
    "__main__": {"cli"},
    "gyre": set(),
}
"""Which packages a package may import; it may always import itself."""

OPEN_INSIDE_FUNCTIONS = {"cli"}
"""Packages whose functions and annotations may name any other: a light command loads only what it
needs."""

THIRD_PARTY: dict[str, set[str]] = {
    "gyre": set(),
    "gyre.batching.group_packer": {"msgspec", "numpy", "safetensors"},
    "gyre.batching.packing": {"numpy"},
    "gyre.cell.api": {"msgspec", "torch"},
    "gyre.cell.checkpoint": {"safetensors", "torch"},
    "gyre.cell.client": {"aiohttp", "msgspec"},
    "gyre.cell.main": {"torch", "uvloop"},
    "gyre.cell.protocol": {"msgspec"},
    "gyre.cell.training_worker": {"torch"},
    "gyre.cell.weight_sync": {"torch"},
    "gyre.cell.ranks.main": {"msgspec", "torch"},
    "gyre.cell.ranks.multi_rank_worker": {"torch"},
    "gyre.cell.ranks.protocol": {"msgspec"},
    "gyre.cell.ranks.rank_group": {"msgspec"},
    "gyre.cell.ranks.worker": {"safetensors", "torch"},
    "gyre.cluster.ray": {"ray"},
    "gyre.config.schema": {"pydantic"},
    "gyre.controller.main": {"uvloop"},
    "gyre.controller.proxy_processes": {"aiohttp"},
    "gyre.controller.resource_usage": {"pynvml"},
    "gyre.controller.cells.processes": {"aiohttp"},
    "gyre.controller.executions.facts_server": {"msgspec"},
    "gyre.evals.plan": {"msgspec"},
    "gyre.evals.results": {"msgspec"},
    "gyre.evals.runner": {"aiohttp", "uvloop"},
    "gyre.export.jsonl": {"numpy", "orjson"},
    "gyre.export.parquet": {"pyarrow"},
    "gyre.export.rows": {"numpy"},
    "gyre.export.safetensors_rows": {"numpy", "safetensors"},
    "gyre.inference.kv_transfer": {"msgspec", "numpy", "safetensors", "torch"},
    "gyre.inference.clients": {"aiohttp", "msgspec"},
    "gyre.inference.clients.http": {"aiohttp", "msgspec", "numpy", "orjson"},
    "gyre.inference.engine": {"torch"},
    "gyre.inference.engine.block_manager": set(),
    "gyre.inference.engine.cuda_graphs": {"numpy", "torch"},
    "gyre.inference.engine.forward": {"numpy", "torch"},
    "gyre.inference.engine.model_runner": {"numpy", "torch"},
    "gyre.inference.engine.sampler": {"numpy", "torch"},
    "gyre.inference.engine.scheduler": set(),
    "gyre.inference.engine.triton_kernels": {"torch", "triton"},
    "gyre.inference.external.engine": {"torch"},
    "gyre.inference.external.registry": {"aiohttp"},
    "gyre.inference.external.sglang": {"aiohttp", "msgspec", "torch"},
    "gyre.inference.external.vllm": {"aiohttp", "msgspec", "safetensors", "torch"},
    "gyre.inference.external.vllm_plugin": {"safetensors", "torch", "vllm"},
    "gyre.inference.server": {"msgspec"},
    "gyre.inference.server.control_api": {"msgspec", "torch"},
    "gyre.inference.server.main": {"tokenizers", "uvloop"},
    "gyre.inference.server.server": set(),
    "gyre.journal": {"msgspec"},
    "gyre.model.attention": {"torch"},
    "gyre.model.attention_kernels": {"numpy", "torch"},
    "gyre.model.checkpoint": {"safetensors", "torch"},
    "gyre.model.cuda_ipc": {"torch"},
    "gyre.model.loader": {"torch", "transformers"},
    "gyre.model.checkpoint_store": {"msgspec", "xxhash"},
    "gyre.model.network": {"torch", "transformers"},
    "gyre.model.packed_batch": {"numpy", "torch"},
    "gyre.model.smollm2": {"numpy", "safetensors", "tokenizers", "torch"},
    "gyre.model.weights": {"safetensors", "torch", "xxhash"},
    "gyre.net.http_server": {"uvicorn"},
    "gyre.net.sse": {"msgspec"},
    "gyre.observability.dashboard.server": {"msgspec", "uvloop"},
    "gyre.observability.report": {"matplotlib"},
    "gyre.observability.report.build": set(),
    "gyre.observability.report.html": set(),
    "gyre.observability.report.tables": set(),
    "gyre.observability.trackers.mlflow": {"mlflow"},
    "gyre.observability.trackers.tensorboard": {"tensorboardX"},
    "gyre.observability.trackers.trackio": {"trackio"},
    "gyre.observability.trackers.wandb": {"wandb"},
    "gyre.proxy.admin_api": {"aiohttp", "msgspec"},
    "gyre.proxy.client": {"aiohttp"},
    "gyre.proxy.main": {"aiohttp", "msgspec", "uvloop"},
    "gyre.proxy.server": {"msgspec"},
    "gyre.proxy.dialects": {"msgspec"},
    "gyre.proxy.dialects.anthropic": {"msgspec", "xxhash"},
    "gyre.proxy.session.history": {"xxhash"},
    "gyre.proxy.session.prompt": {"numpy"},
    "gyre.proxy.session.session": {"numpy"},
    "gyre.renderers.families": {"renderers"},
    "gyre.renderers.tokenizer": {"tokenizers"},
    "gyre.rollout.facts": {"msgspec"},
    "gyre.rollout.main": {"msgspec"},
    "gyre.rollout.spec": {"msgspec"},
    "gyre.simulator.plots": {"matplotlib"},
    "gyre.simulator.workload": {"numpy"},
    "gyre.simulator.world": {"numpy"},
    "gyre.storage.call_log": {"msgspec"},
    "gyre.storage.files": {"msgspec"},
    "gyre.tasks.folder": {"msgspec"},
    "gyre.tasks.harbor": {"msgspec"},
    "gyre.testing.engine_server": {"msgspec", "tokenizers", "uvicorn"},
    "gyre.testing.fake_kv": {"torch"},
    "gyre.testing.script": {"tokenizers"},
    "gyre.testing.timed_engine": {"tokenizers", "torch"},
    "gyre.testing.tokenizer": {"tokenizers"},
    "gyre.testing.trainers": {"torch"},
    "gyre.trainer": {"torch"},
    "gyre.trainer.logprobs": {"numpy", "torch"},
    "gyre.trainer.distributed.cell_comm": {"msgspec", "torch", "xxhash"},
    "gyre.trainer.distributed.pipeline": {"numpy", "torch"},
    "gyre.trainer.distributed.pipeline_schedule": set(),
    "gyre.trainer.megatron.layers": {"megatron", "torch"},
    "gyre.trajectory.selection": {"numpy"},
    "gyre.trajectory.tree": {"numpy"},
    "gyre.transports.mooncake": {"mooncake"},
    "gyre.transports.tensor_layout": {"msgspec"},
    "gyre.transports.tensor_transfer": {"numpy", "xxhash"},
    "gyre.types.training": {"numpy"},
}
"""Third-party packages a module may import; the longest matching name decides."""

PURE = [
    "gyre.batching.advantages",
    "gyre.batching.group_buffer",
    "gyre.batching.packing",
    "gyre.batching.task_sampler",
    "gyre.batching.work_queue",
    "gyre.config.presets",
    "gyre.config.run_config",
    "gyre.config.sections",
    "gyre.harnesses.claude_code",
    "gyre.harnesses.codex",
    "gyre.harnesses.declared",
    "gyre.harnesses.mini_swe_agent",
    "gyre.harnesses.opencode",
    "gyre.harnesses.program",
    "gyre.harnesses.qwen_code",
    "gyre.harnesses.roles",
    "gyre.inference.engine.block_manager",
    "gyre.inference.engine.scheduler",
    "gyre.net.sse",
    "gyre.observability.dashboard.panels",
    "gyre.observability.dashboard.panels_cells",
    "gyre.observability.dashboard.panels_steps",
    "gyre.observability.dashboard.series",
    "gyre.observability.dashboard.views",
    "gyre.observability.history",
    "gyre.observability.inspect.call_view",
    "gyre.observability.inspect.tree_layout",
    "gyre.observability.inspect.tree_summary",
    "gyre.observability.resource_use",
    "gyre.observability.staleness",
    "gyre.observability.terminal.charts",
    "gyre.observability.terminal.text",
    "gyre.proxy.dialects",
    "gyre.proxy.routing.call_output",
    "gyre.proxy.routing.circuit_breaker",
    "gyre.proxy.session",
    "gyre.rewards.assessment",
    "gyre.rewards.score",
    "gyre.rewards.statistics",
    "gyre.rollout.execution",
    "gyre.scheduler",
    "gyre.simulator",
    "gyre.trainer.distributed.pipeline_schedule",
    "gyre.trajectory.selection",
    "gyre.trajectory.tree",
    "gyre.transports.tensor_layout",
    "gyre.types",
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

BANNED_NAMES = {"utils", "util", "helpers", "common", "misc"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec"}

BROAD_EXCEPTS: dict[str, int] = {"gyre.observability.trackers.registry": 1}
"""Modules that may catch everything, and in how many places."""

MOST_LINES = 600
MOST_FUNCTION_LINES = 80
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


def test_every_package_has_its_imports_listed(modules):
    assert set() == {module.subpackage for module in modules} - set(ALLOWED_IMPORTS)


def test_packages_import_only_what_is_allowed(modules):
    wrong = []
    for module in modules:
        for one in module.imports:
            if one.package != "gyre":
                continue
            is_lazy = one.inside or one.for_types
            free = is_lazy and module.subpackage in OPEN_INSIDE_FUNCTIONS
            if not (
                free
                or one.subpackage == module.subpackage
                or one.subpackage in ALLOWED_IMPORTS[module.subpackage]
            ):
                wrong.append(
                    f"{module.at(one.line)}: {module.subpackage} may not import {one.name}"
                )

    assert [] == wrong


def test_only_commands_import_inside_functions(modules):
    assert [] == [
        f"{module.at(one.line)}: {one.name}"
        for module in modules
        for one in module.imports
        if one.inside and module.subpackage not in OPEN_INSIDE_FUNCTIONS
    ]


def test_third_party_packages_are_imported_where_they_are_allowed(modules):
    wrong = []
    for module in modules:
        home = max((name for name in THIRD_PARTY if within(module.name, name)), key=len)
        for one in module.imports:
            if one.package == "gyre" or one.package in sys.stdlib_module_names:
                continue
            if one.package not in THIRD_PARTY[home]:
                wrong.append(f"{module.at(one.line)}: {one.package} is not allowed in {home}")

    assert [] == wrong


def test_pure_modules_exist_and_touch_nothing_outside(modules):
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
            for node in module.nodes
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
