"""Harbor's task folders: defaults, our own words, steps, datasets, and what is refused."""

import shutil

import pytest

from gyre.tasks.deepswe import DeepSweTasks
from gyre.tasks.harbor import HarborTasks, digest, read_task
from gyre.types.errors import TaskError

BASE = "0123456789abcdef0123456789abcdef01234567"


def written(folder, *, toml="", **files):
    """A task folder; names of files have `__` for `/` and `_` for `.`."""
    texts = {"instruction.md": "do it\n", "tests/test.sh": "exit 1\n", "environment/Dockerfile": ""}
    texts |= {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    for name, text in ({"task.toml": toml} | texts).items():
        if text is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def test_what_is_left_out_is_as_harbor_has_it(tmp_path):
    task = read_task(written(tmp_path / "one"))

    assert ("one", "do it\n") == (task.id, task.instruction)
    assert (600.0, None, None) == (task.evaluation.attempt_s, task.agent_s, task.overall_s)
    assert ("reward", "reward", (-1.0,)) == (
        task.evaluation.score,
        task.evaluation.reward_key,
        task.evaluation.sentinels,
    )
    assert ("/tests", "/logs/verifier") == (task.evaluation.files_at, task.evaluation.results_at)
    assert str(tmp_path / "one" / "tests") == task.evaluation.files
    assert (False, "/app", 600.0) == (
        task.needs.portable,
        task.needs.workdir,
        task.needs.build_s,
    )
    assert str(tmp_path / "one" / "environment") == task.needs.build
    assert (None, None) == (task.files, task.solution)


SAID = """
version = "1.0"
[task]
name = "org/name"
[unknown]
table = 1
[metadata]
difficulty = "hard"
tags = ["a", "b"]
[metadata.rl]
reward_key = "f2p"
gate = "p2p"
baseline = 0.25
sentinels = [-1, -2]
evidence = ["ctrf.json"]
eval_retries = 4
overall_timeout_sec = 900
preserve = true
portable = true
[agent]
timeout_sec = 300
[verifier]
timeout_sec = 90
env = { MODE = "${MODE:-strict}" }
[environment]
docker_image = "busybox"
cpus = 2
memory = "2G"
storage_mb = 512
workdir = "/work"
env = { A = "1" }
"""


def test_what_is_said_is_taken(tmp_path):
    folder = written(
        tmp_path / "one", toml=SAID, environment__files__in_txt="x", solution__solve_sh="true"
    )
    task = read_task(folder)
    rule = task.evaluation

    assert ("org/name", 300.0, 900.0, True) == (
        task.id,
        task.agent_s,
        task.overall_s,
        task.preserve,
    )
    assert ("f2p", "p2p", 0.25) == (rule.reward_key, rule.gate, rule.baseline)
    assert ((-1.0, -2.0), ("ctrf.json",), 5) == (rule.sentinels, rule.evidence, rule.attempts)
    assert ({"MODE": "strict"}, {"A": "1"}) == (rule.variables, task.variables)
    assert {"difficulty": "hard", "tags": '["a", "b"]'} == task.metadata
    assert ("busybox", None, "/work") == (task.needs.image, task.needs.build, task.needs.workdir)
    assert (2.0, 2048, 512) == (task.needs.cpus, task.needs.memory_mb, task.needs.storage_mb)
    assert str(folder / "environment" / "files") == task.files
    assert str(folder / "solution") == task.solution


def test_marks_of_a_benchmark_are_not_shown(tmp_path):
    text = "<!-- CANARY 1234 -->\n# canary 5\n\nDo it.\n# canary birds stay\n"

    assert "Do it.\n# canary birds stay\n" == (
        read_task(written(tmp_path / "a", instruction_md=text)).instruction
    )


def test_the_last_workdir_of_a_dockerfile_is_where_work_is_done(tmp_path):
    folder = written(
        tmp_path / "a", environment__Dockerfile="FROM x\nWORKDIR /one\nRUN y\nWORKDIR /two\n"
    )

    assert "/two" == read_task(folder).needs.workdir


MISTAKES = {
    "metadata.rl.reward_kye: unknown key": "[metadata.rl]\nreward_kye = 'x'",
    "metadata.rl: expected a table": "[metadata]\nrl = 3",
    "metadata.rl.baseline: expected": "[metadata.rl]\nbaseline = 1.0",
    "metadata.rl.eval_retries: expected": "[metadata.rl]\neval_retries = -1",
    "metadata.rl.overall_timeout_sec: expected no less": (
        "[agent]\ntimeout_sec = 9\n[metadata.rl]\noverall_timeout_sec = 5"
    ),
    "agent.timeout_sec: expected more than 0": "[agent]\ntimeout_sec = 0",
    "environment.os: expected linux": "[environment]\nos = 'windows'",
    "environment.gpus: expected none": "[environment]\ngpus = 1",
    "Expected `float`, got `str`": "[verifier]\ntimeout_sec = 'x'",
    "nothing of this machine's environment": "[verifier.env]\nKEY = '${OPENAI_API_KEY}'",
    "leads out of steps|inside steps": "[[steps]]\nname = '../up'",
    "expected a folder of that name": "[[steps]]\nname = 'none'",
    "steps.a.verifier.timeout_sec: expected more": (
        "[[steps]]\nname = 'a'\nverifier = {timeout_sec = 0}"
    ),
    "names that differ": "[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'",
    "task.toml": "x = ",
}


@pytest.mark.parametrize("complaint", MISTAKES)
def test_a_mistake_in_a_task_is_named(complaint, tmp_path):
    with pytest.raises(TaskError, match=complaint):
        read_task(written(tmp_path / "a", toml=MISTAKES[complaint]))


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("instruction.md", "instruction.md"),
        ("tests/test.sh", "test.sh: expected a file"),
        ("environment", "expected a folder environment"),
    ],
)
def test_a_part_that_is_missing_is_named(missing, complaint, tmp_path):
    folder = written(tmp_path / "a")
    if (folder / missing).is_dir():
        shutil.rmtree(folder / missing)
    else:
        (folder / missing).unlink()

    with pytest.raises(TaskError, match=complaint):
        read_task(folder)


def test_a_link_that_leads_out_of_a_task_is_refused(tmp_path):
    (tmp_path / "secret").write_text("key")
    folder = written(tmp_path / "a")
    (folder / "tests" / "inside").symlink_to("test.sh")
    assert "a" == read_task(folder).id
    for target in ("../../secret", str(tmp_path / "secret"), "/etc"):
        (folder / "tests" / "outside").symlink_to(target)
        with pytest.raises(TaskError, match="outside: a link to"):
            read_task(folder)
        (folder / "tests" / "outside").unlink()


STEPS = """
multi_step_reward_strategy = "final"
[agent]
timeout_sec = 50
[[steps]]
name = "first"
min_reward = 0.5
[[steps]]
name = "second"
[steps.agent]
timeout_sec = 20
[steps.verifier]
timeout_sec = 30
"""


def test_steps_come_in_their_order_with_their_own_judges(tmp_path):
    folder = written(
        tmp_path / "a",
        toml=STEPS,
        instruction_md=None,
        tests__test_sh=None,
        steps__first__instruction_md="one",
        steps__first__tests__test_sh="true",
        steps__first__workdir__in_txt="x",
        steps__second__instruction_md="two",
        steps__second__tests__test_sh="true",
    )
    task = read_task(folder)
    first, second = task.steps

    assert ("final", "one") == (task.steps_reward, task.instruction)
    assert ("one", "two") == (first.instruction, second.instruction)
    assert ({"reward": 0.5}, {}) == (first.least, second.least)
    assert (50.0, 20.0) == (first.agent_s, second.agent_s)
    assert (600.0, 30.0) == (first.evaluation.attempt_s, second.evaluation.attempt_s)
    assert (str(folder / "steps" / "first" / "workdir"), None) == (first.files, second.files)
    assert second.evaluation == task.evaluation
    assert 70.0 == task.agent_s


def test_a_step_lays_its_own_tests_over_those_of_the_task(tmp_path):
    """Its settings too, where it has any."""
    folder = written(
        tmp_path / "a",
        toml="[verifier]\nenv = {LEVEL = '1'}\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'",
        instruction_md=None,
        tests__test_sh="true",
        steps__one__instruction_md="one",
        steps__one__tests__cases_txt="x",
        steps__two__instruction_md="two",
    )
    one, two = read_task(folder).steps

    assert (str(folder / "tests"), str(folder / "steps" / "one" / "tests")) == (
        one.evaluation.files,
        one.evaluation.files_over,
    )
    assert (str(folder / "tests"), None) == (two.evaluation.files, two.evaluation.files_over)
    assert {"LEVEL": "1"} == one.evaluation.variables
    assert read_task(folder).agent_s is None


def test_a_step_without_any_test_is_refused(tmp_path):
    folder = written(
        tmp_path / "a",
        toml="[[steps]]\nname = 'one'",
        tests__test_sh=None,
        steps__one__instruction_md="one",
    )
    with pytest.raises(TaskError, match=r"steps/one/tests/test\.sh: expected a file"):
        read_task(folder)


def dataset(folder, *members):
    lines = ["[dataset]", 'name = "org/set"']
    for name, digested in members:
        lines += ["[[tasks]]", f'name = "{name}"', f'digest = "{digested}"']
    (folder / "dataset.toml").write_text("\n".join(lines))


def named(name):
    return f'[task]\nname = "org/{name}"'


def test_a_dataset_gives_its_tasks_in_its_order_by_their_digests(tmp_path):
    one = written(tmp_path / "x", toml=named("one"))
    two = written(tmp_path / "y", toml=named("two"))
    written(tmp_path / "z", toml=named("three"))
    dataset(tmp_path, ("org/two", digest(two)), ("org/one", digest(one)))
    found = HarborTasks(tmp_path)

    assert ["org/two", "org/one"] == [found.get(index).id for index in range(len(found))]
    (one / "notes.txt").write_text("beside the task")
    (one / "tests" / "__pycache__").mkdir()
    (one / "tests" / "__pycache__" / "a.pyc").write_text("no part of it")
    assert 2 == len(HarborTasks(tmp_path))
    (one / "tests" / "test.sh").write_text("exit 0")
    with pytest.raises(TaskError, match=r"tasks\[1\].*expected sha256:.*found sha256:"):
        HarborTasks(tmp_path)


def test_a_digest_is_as_harbor_computes_it(tmp_path):
    """Of `PATH NUL HASH NEWLINE` for each file, in the order of the paths."""
    folder = tmp_path / "t"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text("")
    (folder / "tests" / "test.sh").write_text("exit 0\n")

    assert "sha256:9176976c5292e56e1d5751dd8c2810c9b142b245dcc09364e0afa6f1fbf6a3e7" == digest(
        folder
    )


@pytest.mark.parametrize(
    ("name", "digested", "complaint"),
    [
        ("org/../x", "sha256:" + "0" * 64, "expected ORG/NAME"),
        ("org/one", "md5:1", "expected sha256:"),
        ("org/none", "sha256:" + "0" * 64, "found none"),
    ],
)
def test_a_wrong_member_of_a_dataset_is_named(name, digested, complaint, tmp_path):
    written(tmp_path / "x", toml=named("one"))
    dataset(tmp_path, (name, digested))

    with pytest.raises(TaskError, match=complaint):
        HarborTasks(tmp_path)


def test_tasks_may_lie_deeper_and_have_names_of_their_own(tmp_path):
    written(tmp_path / "group" / "b")
    written(tmp_path / "group" / "a")
    found = HarborTasks(tmp_path)

    assert ["a", "b"] == [found.get(index).id for index in range(2)]
    assert "a" == HarborTasks(tmp_path / "group" / "a").get(0).id
    written(tmp_path / "other" / "a")
    with pytest.raises(TaskError, match="'a' is the name of two tasks"):
        HarborTasks(tmp_path)
    with pytest.raises(TaskError, match="expected a folder"):
        HarborTasks(tmp_path / "nowhere")


def test_deepswe_pays_for_what_failed_before_if_the_rest_still_works(tmp_path):
    toml = f'[metadata]\nbase_commit_hash = "{BASE}"\n'
    written(tmp_path / "a", toml=toml, environment__Dockerfile="WORKDIR /src\n")
    rule = DeepSweTasks(tmp_path).get(0).evaluation

    assert ("f2p", "p2p", (-1.0,)) == (rule.reward_key, rule.gate, rule.sentinels)
    assert ("bash", "-c") == rule.argv[:2]
    for line in ("cd /src", "add -A", f"diff --binary {BASE} HEAD", f"--force {BASE}"):
        assert line in rule.argv[2]
    written(tmp_path / "b", toml="[metadata]\nbase_commit_hash = 'x; rm'")
    with pytest.raises(TaskError, match="base_commit_hash: expected a commit"):
        DeepSweTasks(tmp_path)
