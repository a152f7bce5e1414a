"""Rules for every line of the package: nothing unpickles, runs text, or compares a secret."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "gyre"

UNPICKLE = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml",
    "multiprocessing", "xmlrpc", "torch.distributed.rpc", "torch.distributed.checkpoint",
}  # fmt: skip
"""Modules that read objects, and with them programs, out of bytes."""
CALLS = {
    "torch.load": "reads pickles",
    "torch.save": "writes pickles",
    "numpy.load": "reads pickles",
    "np.load": "reads pickles",
    "concurrent.futures.ProcessPoolExecutor": "sends pickles",
    "ProcessPoolExecutor": "sends pickles",
    "os.system": "runs text",
    "os.popen": "runs text",
    "eval": "runs text",
    "exec": "runs text",
    "compile": "runs text",
    "tempfile.mktemp": "names a file that others may make first",
}
OBJECTS = ("gather_object", "_object_list")
"""Ends of the names of torch.distributed's collectives that carry pickles."""
ALLOWED = {"cli/simulate.py": 2}
"""Modules that may, and in how many places: a command's own children, over pipes of its own."""
SECRETS = {"_token", "_key", "_facts_token", "admin_token", "secret", "password"}


def broken(tree):
    """What a module does that none may, with the line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, one.name) for one in names if _unpickles(one.name))
            case ast.ImportFrom(module=str(module), names=names):
                whole = [module, *(f"{module}.{one.name}" for one in names)]
                yield from ((node.lineno, one) for one in whole if _unpickles(one))
            case ast.Call(func=func, keywords=keywords):
                name = ast.unparse(func)
                if name in CALLS:
                    yield node.lineno, f"{name} {CALLS[name]}"
                if name.endswith(OBJECTS):
                    yield node.lineno, f"{name} sends pickles"
                for one in keywords:
                    told = isinstance(one.value, ast.Constant) and one.value.value is True
                    if told and one.arg in ("shell", "trust_remote_code", "allow_pickle"):
                        yield node.lineno, f"{one.arg}=True runs text"
            case ast.Compare(left=left, ops=ops, comparators=others):
                same = any(isinstance(op, ast.Eq | ast.NotEq) for op in ops)
                if same and any(_is_secret(one) for one in (left, *others)):
                    yield node.lineno, "a secret is compared in time that depends on it"


def _unpickles(name):
    return any(name == one or name.startswith(one + ".") for one in UNPICKLE)


def _is_secret(node):
    return isinstance(node, ast.Attribute) and node.attr in SECRETS


def test_no_module_unpickles_runs_text_or_compares_a_secret_plainly():
    """FAULTS 35, 41."""
    paths = sorted(PACKAGE.rglob("*.py"))
    wrong = {
        str(path.relative_to(PACKAGE)): list(broken(ast.parse(path.read_text(encoding="utf-8"))))
        for path in paths
    }
    allowed = {name: len(wrong.pop(name)) for name in ALLOWED}

    assert len(paths) > 200
    assert {} == {name: found for name, found in wrong.items() if found}
    assert ALLOWED == allowed


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from torch.distributed import rpc",
        "import torch.distributed.checkpoint as dcp",
        "import multiprocessing.connection",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "subprocess.run(line, shell=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "groups.all_gather_object(found, mine)",
        "eval(text)",
        "given == self._token",
        "self._key != given",
    ],
)
def test_the_rules_see(line):
    assert [] != list(broken(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "hmac.compare_digest(given, self._token)",
        "re.compile(text)",
        "subprocess.run(argv, shell=False)",
        "torch.compile(layer)",
        "call._key_hash == found",
    ],
)
def test_the_rules_leave_alone(line):
    assert [] == list(broken(ast.parse(line)))


def test_every_token_is_checked_by_a_comparison_of_constant_time():
    """Each listener has one; a key of an execution is looked up by its hash instead."""
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "compare_digest(" in path.read_text(encoding="utf-8")
    }

    assert {
        "proxy/admin_api.py",
        "inference/server/server.py",
        "cell/api.py",
        "controller/executions/facts_server.py",
    } <= users
