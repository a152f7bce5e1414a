"""Files in a program's home."""

import pytest

from gyre.sandboxes.process import write_home
from gyre.types.errors import SandboxError


def test_files_are_written_for_their_owner_alone(tmp_path):
    write_home(tmp_path, {".config/agent/settings.json": "ü", "plain": ""})
    path = tmp_path / ".config" / "agent" / "settings.json"

    assert "ü" == path.read_text(encoding="utf-8")
    assert 0o600 == path.stat().st_mode & 0o777
    assert "" == (tmp_path / "plain").read_text()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", ".", "a\0b"])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, name):
    home = tmp_path / "home"
    with pytest.raises(SandboxError, match="home of a sandbox"):
        write_home(home, {name: "text"})

    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("link", [".config", ".config/agent", ".config/agent/settings.json"])
def test_links_that_a_program_left_lead_nobody_out_of_its_home(tmp_path, link):
    home, host = tmp_path / "home", tmp_path / "host"
    for folder in (home, host / "agent"):
        folder.mkdir(parents=True)
    for file in (host / "settings.json", host / "agent" / "settings.json"):
        file.write_text("of the host")
    (home / link).parent.mkdir(parents=True, exist_ok=True)
    (home / link).symlink_to(host / "settings.json" if link.endswith("json") else host)
    write_home(home, {".config/agent/settings.json": "of the harness"})

    assert "of the host" == (host / "settings.json").read_text()
    assert "of the host" == (host / "agent" / "settings.json").read_text()
    assert "of the harness" == (home / ".config" / "agent" / "settings.json").read_text()
