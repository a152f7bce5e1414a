"""What libraries open once for a whole process and never close.

A test module that comes to such a library calls this when it is imported, before the first test.
"""

import uvloop
from torch.distributed import TCPStore


def by_torch() -> None:
    """The pipe by which the libuv in torch hears of signals."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def by_uvloop() -> None:
    """The same pipe of another libuv."""
    uvloop.new_event_loop().close()
