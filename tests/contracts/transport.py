"""What every transport promises behind the Transport port; each promise is one function."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Protocol

import pytest

from gyre.types.errors import ExposureGone, TransferError
from gyre.types.protocols import Exposure, Transport

LARGE = bytes(range(256)) * 40_000


class Subject(Protocol):
    """A way between processes of one machine."""

    outlives: bool
    """What a process exposed is there when it is gone."""

    def open(self, owner: str) -> AbstractContextManager[Transport]:
        """For one process of the run."""
        ...

    def elsewhere(self, data: bytes, version: int) -> AbstractContextManager["Peer"]:
        """Another process that has exposed these bytes."""
        ...


class Peer(Protocol):
    """That process."""

    exposure: Exposure

    def replace(self, data: bytes, version: int) -> Exposure:
        """It has withdrawn what it exposed, and exposed this."""
        ...

    def kill(self) -> None: ...


def read(transport: Transport, given: Exposure, at: int = 0, size: int | None = None) -> bytes:
    into = bytearray(given.num_bytes - at if size is None else size)
    transport.read(given, at, memoryview(into))
    return bytes(into)


def exposed(transport: Transport, *parts: bytes, version: int = 1) -> Exposure:
    return transport.expose([memoryview(one) for one in parts], version=version)


def what_is_exposed_is_read_by_another_process(subject: Subject) -> None:
    with subject.elsewhere(LARGE, 7) as peer, subject.open("reader") as reader:
        assert 7 == peer.exposure.version
        assert len(LARGE) == peer.exposure.num_bytes
        assert LARGE == read(reader, peer.exposure)
        assert LARGE[3:1003] == read(reader, peer.exposure, 3, 1000)
        assert b"" == read(reader, peer.exposure, len(LARGE))


def parts_lie_one_after_the_other_and_nothing_between_them(subject: Subject) -> None:
    with subject.open("owner") as owner, subject.open("reader") as reader:
        given = exposed(owner, b"one", b"", LARGE, b"two")

        assert b"one" + LARGE + b"two" == read(reader, given)


def it_is_a_copy_of_what_was_there(subject: Subject) -> None:
    data = bytearray(b"before")
    with subject.open("owner") as owner, subject.open("reader") as reader:
        given = owner.expose([memoryview(data)], version=1)
        data[:] = b"after!"

        assert b"before" == read(reader, given)


def exposures_are_read_beside_each_other_by_many(subject: Subject) -> None:
    with subject.open("owner") as owner, subject.open("reader") as reader:
        given = [exposed(owner, bytes([at]) * 100_000, version=at) for at in range(4)]
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda one: read(reader, one), given * 4))

        assert [bytes([at]) * 100_000 for at in range(4)] * 4 == found


def what_is_withdrawn_cannot_be_read(subject: Subject) -> None:
    with subject.open("owner") as owner, subject.open("reader") as reader:
        first, second = exposed(owner, b"first"), exposed(owner, b"other")
        owner.withdraw(first)
        owner.withdraw(first)

        with pytest.raises(ExposureGone):
            read(reader, first)
        assert b"other" == read(reader, second)


def nothing_is_read_under_the_description_of_something_else(subject: Subject) -> None:
    with subject.elsewhere(LARGE, 1) as peer, subject.open("reader") as reader:
        before = peer.exposure
        now = peer.replace(LARGE[::-1], 2)

        with pytest.raises(ExposureGone):
            read(reader, before)
        with pytest.raises(ExposureGone):
            read(reader, replace(before, at=now.at), 100, 100)
        assert LARGE[::-1] == read(reader, now)


def what_changes_during_a_read_is_never_taken_for_what_was_described(subject: Subject) -> None:
    """The owner exposes one thing after the other while the newest description is read."""
    with subject.open("owner") as owner, subject.open("reader") as reader:
        newest = [exposed(owner, bytes([0]) * 300_000, version=0)]
        done = threading.Event()

        def change() -> None:
            while not done.is_set():
                version = newest[0].version + 1
                owner.withdraw(newest[0])
                newest[0] = exposed(owner, bytes([version % 256]) * 300_000, version=version)

        with ThreadPoolExecutor(1) as threads:
            changing = threads.submit(change)
            try:
                for _ in range(100):
                    given = newest[0]
                    with suppress(ExposureGone):
                        assert bytes([given.version % 256]) * 300_000 == read(reader, given)
            finally:
                done.set()
            changing.result()
        given = newest[0]

        assert bytes([given.version % 256]) * 300_000 == read(reader, given)


def bytes_beyond_its_bounds_are_refused(subject: Subject) -> None:
    with subject.open("owner") as owner, subject.open("reader") as reader:
        given = exposed(owner, b"0123456789")

        for at, size in ((0, 11), (10, 1), (-1, 2), (2**60, 4)):
            with pytest.raises(TransferError):
                read(reader, given, at, size)
        assert b"9" == read(reader, given, 9, 1)


def a_description_that_is_not_right_is_refused(subject: Subject) -> None:
    with subject.open("owner") as owner, subject.open("reader") as reader:
        given = exposed(owner, b"0123456789")
        wrong = [
            replace(given, kind="another"),
            replace(given, key="../../../etc/passwd"),
            replace(given, key="0" * 32),
            replace(given, peer="/etc/passwd"),
            replace(given, peer=""),
            replace(given, num_bytes=-1),
            replace(given, num_bytes=2**62),
            replace(given, version=2**70),
            replace(given, at=-1),
        ]

        for one in wrong:
            with pytest.raises(TransferError):
                read(reader, one, 0, 1)
        assert b"0123456789" == read(reader, given)


def a_peer_that_is_gone_is_an_error_unless_it_left_all_of_it(subject: Subject) -> None:
    with subject.elsewhere(LARGE, 1) as peer, subject.open("reader") as reader:
        assert LARGE[:10] == read(reader, peer.exposure, 0, 10)
        peer.kill()

        if subject.outlives:
            assert LARGE == read(reader, peer.exposure)
        else:
            with pytest.raises(TransferError):
                read(reader, peer.exposure)


def a_transport_that_is_closed_holds_nothing(subject: Subject) -> None:
    with subject.open("reader") as reader, subject.open("owner") as owner:
        given = exposed(owner, b"0123456789")
        owner.close()
        owner.close()

        with pytest.raises(TransferError):
            read(reader, given)


EVERY_TRANSPORT = [
    what_is_exposed_is_read_by_another_process,
    parts_lie_one_after_the_other_and_nothing_between_them,
    it_is_a_copy_of_what_was_there,
    exposures_are_read_beside_each_other_by_many,
    what_is_withdrawn_cannot_be_read,
    nothing_is_read_under_the_description_of_something_else,
    what_changes_during_a_read_is_never_taken_for_what_was_described,
    bytes_beyond_its_bounds_are_refused,
    a_description_that_is_not_right_is_refused,
    a_peer_that_is_gone_is_an_error_unless_it_left_all_of_it,
    a_transport_that_is_closed_holds_nothing,
]
