"""What travels to the machine with the GPU arrives as it was, without what is left out."""

import re
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "engines_gpu"


@pytest.fixture(scope="module")
def packer():
    loader = SourceFileLoader("engines_gpu", str(SCRIPT))
    module = module_from_spec(spec_from_loader("engines_gpu", loader))
    loader.exec_module(module)
    return module


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_wheels_are_merged_without_what_is_left_out(packer, tmp_path):
    wheels, tree = tmp_path / "wheels", tmp_path / "tree"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "sglang_kernel-1-py3-none-any.whl", "w") as made:
        for name in ("sgl_kernel/__init__.py", "sgl_kernel/sm100/common_ops.abi3.so"):
            made.writestr(name, name)
    packer.merge(wheels, tree)

    assert {"sgl_kernel/__init__.py", "IPython/__init__.py", "flashinfer/__init__.py"} == set(
        contents(tree)
    )


def test_a_folder_in_several_parts_is_the_same_again(packer, tmp_path):
    tree, place = tmp_path / "tree", tmp_path / "place"
    (tree / "inner").mkdir(parents=True)
    place.mkdir()
    (tree / "inner" / "one").write_bytes(bytes(range(256)) * 9)
    (tree / "two").write_bytes(b"two")
    num_bytes = packer.cut(tree, place, part_bytes=16)
    packer.unpack(place, tmp_path / "there")

    # More than ten, so that their order is not that of their names.
    assert 10 < len(list(place.glob("part-*"))) == -(-num_bytes // 16)
    assert contents(tree) == contents(tmp_path / "there")


def test_nothing_is_unpacked_where_no_part_came(packer, tmp_path):
    with pytest.raises(FileNotFoundError, match="found none"):
        packer.unpack(tmp_path, tmp_path / "there")


def test_every_pin_has_a_version_and_a_hash(packer):
    lines = packer.PINS.read_text().splitlines()[1:]
    pinned = [re.fullmatch(r"[a-z0-9-]+==\S+ --hash=sha256:[0-9a-f]{64}", one) for one in lines]

    assert all(pinned)
    assert any(line.startswith("sglang==0.5.17 ") for line in lines)
