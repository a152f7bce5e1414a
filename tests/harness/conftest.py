"""Real agent programs, installed once; scenes that several tests look at are played once."""

import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest

# Before the modules below, which tests import as `staging`, because this folder is no package.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("staging.findings")

from staging.findings import Findings, Stage  # noqa: E402
from staging.program import install, version_of  # noqa: E402
from staging.scene import Scene, play  # noqa: E402


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder that holds the programs; filling it is the only thing that needs a network."""
    return install()


@pytest.fixture(scope="session")
def stage(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Plays a scene, unless it was played already."""
    played: dict[bytes, Findings] = {}

    version = cache(version_of)

    def of_scene(scene: Scene) -> Findings:
        key = msgspec.json.encode(scene)
        if key not in played:
            folder = tmp_path_factory.mktemp(scene.script) / "scene"
            said = version(scene.program)
            outcome = play(scene, folder)
            played[key] = Findings(scene=scene, outcome=outcome, folder=folder, version=said)
        return played[key]

    return of_scene
