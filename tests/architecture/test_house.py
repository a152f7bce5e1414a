"""Names of the field lead to their file, folders stay small, and walks through the code short."""

import re
import runpy

import pytest

LOOKUPS = (
    ("trainer", "trainer/trainer.py"),  # the trainer
    ("loss", "trainer/loss.py"),  # policy loss
    ("optim", "trainer/optimizer.py"),  # optimizer
    ("advantage", "batching/advantages.py"),  # advantages
    ("packing", "batching/packing.py"),  # sequence packing
    ("trajector", "trajectory/tree.py"),  # trajectories
    ("buffer", "batching/group_buffer.py"),  # trajectory / replay buffer
    ("sampler", "batching/task_sampler.py"),  # task / data sampler
    ("rollout", "rollout/supervisor.py"),  # rollout of one task
    ("harness", "harnesses/claude_code.py"),  # agent harness
    ("docker", "sandboxes/docker/sandbox.py"),  # sandbox / environment
    ("reward", "rewards/assessment.py"),  # reward
    ("eval", "controller/executions/held_out_eval.py"),  # held-out evaluation
    ("scheduler", "scheduler/scheduler.py"),  # scheduler of the run
    ("controller", "controller/controller.py"),  # controller / orchestrator
    ("router", "proxy/routing/router.py"),  # request router
    ("session", "proxy/session/session.py"),  # session of an agent
    ("anthropic", "proxy/dialects/anthropic.py"),  # Anthropic dialect
    ("tokenizer", "renderers/tokenizer.py"),  # tokenizer
    ("server", "inference/server/server.py"),  # inference server
    ("scheduler", "inference/engine/scheduler.py"),  # continuous-batching scheduler
    ("block", "inference/engine/block_manager.py"),  # block manager
    ("kv", "inference/engine/kv_cache.py"),  # KV cache
    ("runner", "inference/engine/model_runner.py"),  # model runner
    ("graph", "inference/engine/cuda_graphs.py"),  # CUDA graphs
    ("weight_sync", "cell/weight_sync.py"),  # weight sync
    ("checkpoint", "controller/cells/checkpointer.py"),  # checkpoint manager
    ("distributed", "trainer/distributed/cell_comm.py"),  # gradient all-reduce
    ("health", "controller/cells/health.py"),  # health monitor
    ("heartbeat", "rollout/heartbeat.py"),  # heartbeat
    ("client", "cell/client.py"),  # client of a worker
    ("process", "controller/cells/processes.py"),  # worker processes
    ("resume", "controller/resume.py"),  # resume
    ("dashboard", "observability/dashboard/server.py"),  # dashboard
    ("config", "config/run_config.py"),  # config classes
    ("wandb", "observability/trackers/wandb.py"),  # metrics / W&B
)
"""What an engineer types into a file finder, and the file that holds the thing."""
MOST_FILES = {"Walk 1": 40, "Walk 2": 40, "Walk 3": 44, "Walk 4": 55}
"""Ratchets: a walk may become shorter."""
MOST_MODULES = 345
MOST_IN_A_FOLDER = 20
MOST_WORDS = 55_000
"""Of all pages in docs, those that are generated included, and of benchmarks/README.md."""


@pytest.fixture(scope="module")
def house(root):
    return runpy.run_path(str(root / "scripts" / "house"))


@pytest.fixture(scope="module")
def paths(house):
    return {path.relative_to(house["PACKAGE"]).as_posix() for path in house["modules"]()}


def test_there_are_thirty_six():
    assert 36 == len(LOOKUPS)


@pytest.mark.parametrize(("typed", "file"), LOOKUPS)
def test_a_name_of_the_field_finds_the_file(paths, typed, file):
    assert file in {path for path in paths if typed in path}


def test_modules_are_few_and_folders_small(house, paths):
    full = {folder: count for folder, count in house["folders"]().items() if folder != "cli"}

    assert MOST_MODULES >= len(paths)
    assert {} == {one: count for one, count in full.items() if count > MOST_IN_A_FOLDER}


def test_the_pages_stay_at_or_under_their_number_of_words(house):
    assert MOST_WORDS >= house["words"]().total()


def test_what_a_reader_does_not_see_is_no_word(house, tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# A page\n\n| [12x](results/a.json "b c") | `two words` |\n|---|---|\n')

    assert 5 == house["seen"](page)


def test_walks_name_files_that_exist_and_stay_short(house, paths):
    walks = house["walks"]()

    assert list(MOST_FILES) == [name.partition(":")[0] for name in walks]
    for name, files in walks.items():
        assert set() == set(files) - paths
        assert MOST_FILES[name.partition(":")[0]] >= len(files), name


def test_the_page_says_the_numbers_as_they_are(house, paths, root):
    page = (root / "docs" / "architecture.md").read_text()
    said = dict(re.findall(r"^\| ([^|]+?) \| \d+ \| (\d+) \|$", page, re.MULTILINE))
    fullest = max(count for folder, count in house["folders"]().items() if folder != "cli")
    counted = [len(paths), fullest, *(len(files) for files in house["walks"]().values())]

    assert [*map(str, counted), str(len(LOOKUPS))] == list(said.values())
