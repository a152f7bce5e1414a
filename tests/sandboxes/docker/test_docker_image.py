"""What an image has in place of the workspace is unpacked, and leads nowhere else."""

import io
import tarfile

import pytest

from gyre.sandboxes.docker.image import put_below
from gyre.types.errors import SandboxError


class Archive:
    """A daemon that answers with these members, each a name, a kind and where it leads."""

    def __init__(self, *members):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, kind, leads in members:
                one = tarfile.TarInfo(name)
                one.type, one.linkname = kind, leads
                archive.addfile(one)
        self._data = packed.getvalue()

    def read(self, at, use, **parameters):
        use(io.BytesIO(self._data))


def put(tmp_path, *members):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    put_below(
        Archive(("app", tarfile.DIRTYPE, ""), *members), "c", "/app", workspace, tmp_path / "aside"
    )
    return workspace


def test_hard_links_inside_stay_links(tmp_path):
    workspace = put(
        tmp_path, ("app/one", tarfile.REGTYPE, ""), ("app/other", tarfile.LNKTYPE, "app/one")
    )

    assert (workspace / "one").samefile(workspace / "other")


@pytest.mark.parametrize("way", ["absolute", "upwards", "through a link"])
def test_a_hard_link_to_a_file_of_the_machine_is_refused(way, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    leads = {"absolute": str(secret), "upwards": "../secret", "through a link": "app/out/secret"}
    with pytest.raises(SandboxError, match=r"/app of the image: .*outside"):
        put(
            tmp_path,
            ("app/out", tarfile.SYMTYPE, str(tmp_path)),
            ("app/taken", tarfile.LNKTYPE, leads[way]),
        )

    assert [] == list((tmp_path / "workspace").iterdir())
    assert 1 == secret.stat().st_nlink
