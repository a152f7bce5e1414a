"""Files between cells: a description leads to no file but its own."""

import pytest

from gyre.transports.shared_memory import SharedTransport
from gyre.types.errors import TransferError
from gyre.types.protocols import Exposure

KEY = "ab" * 16


@pytest.mark.parametrize(
    "peer", ["", "..", "other", f"../{KEY}", f"/{KEY}", f"a/{KEY}", f"{KEY}\0"]
)
def test_a_peer_that_is_no_name_of_a_file_is_refused(tmp_path, peer):
    transport = SharedTransport(tmp_path, owner="cell-0")
    given = Exposure(kind="shared", peer=peer, key=KEY, version=1, num_bytes=1)

    with pytest.raises(TransferError, match="expected the name of a file"):
        transport.read(given, 0, memoryview(bytearray(1)))
