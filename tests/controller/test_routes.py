"""The route table: engines that are ready, told once, one order at a time."""

import asyncio

from gyre.controller.routes import RouteTable, RouteTables
from gyre.types.ids import shard_of


class Told:
    """A proxy that writes down what it is told, and takes its time."""

    def __init__(self):
        self.orders = []
        self.go = asyncio.Event()
        self.go.set()

    async def assign(self, version, routes):
        self.orders.append((version, dict(routes)))
        await self.go.wait()
        return 1


def routed(work):
    async def live():
        proxy = Told()
        table = RouteTable(proxy, [f"engine-{engine}" for engine in range(8)])
        working = asyncio.create_task(table.work())
        try:
            await work(table, proxy)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        return proxy.orders

    return asyncio.run(live())


def all_ready(engine):
    return True


def test_only_what_changes_is_told_and_what_ends_loses_its_route():
    async def work(table, proxy):
        table.want({"a": 0, "b": 1}, all_ready)
        await table.flushed()
        table.want({"a": 0, "b": 1}, all_ready)
        await table.flushed()
        table.want({"a": None, "b": 0}, all_ready)
        await table.flushed()

    assert [
        (1, {"a": "engine-0", "b": "engine-1"}),
        (2, {"b": "engine-0", "a": None}),
    ] == routed(work)


def test_an_execution_whose_engine_is_away_has_no_route_until_it_is_back():
    """SPEC 9: under Colocate executions keep their seats while cells train."""

    async def work(table, proxy):
        table.want({"a": 0}, all_ready)
        await table.flushed()
        table.want({}, lambda engine: False, turned=True)
        await table.flushed()
        table.want({}, all_ready, turned=True)
        await table.flushed()

    assert [(1, {"a": "engine-0"}), (2, {"a": None}), (3, {"a": "engine-0"})] == routed(work)


def test_nobody_is_told_of_an_execution_that_never_had_an_engine():
    async def work(table, proxy):
        table.want({"a": 0, "b": 1}, lambda engine: engine == 1)
        await table.flushed()
        table.want({"a": None}, all_ready)
        await table.flushed()

    assert [(1, {"b": "engine-1"})] == routed(work)


def test_one_that_ends_while_its_route_is_on_its_way_loses_it_afterwards():
    """A proxy keeps what it is told until it is told otherwise."""

    async def work(table, proxy):
        proxy.go.clear()
        table.want({"a": 0}, all_ready)
        while not proxy.orders:
            await asyncio.sleep(0)
        table.want({"a": None}, all_ready)
        proxy.go.set()
        await table.flushed()

    assert [(1, {"a": "engine-0"}), (2, {"a": None})] == routed(work)


def test_what_changes_while_an_order_is_under_way_follows_it():
    async def work(table, proxy):
        proxy.go.clear()
        table.want({"a": 0}, all_ready)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        table.want({"a": 1}, all_ready)
        waiting = asyncio.create_task(table.flushed())
        await asyncio.sleep(0)
        assert not waiting.done()
        proxy.go.set()
        await waiting

    assert [(1, {"a": "engine-0"}), (2, {"a": "engine-1"})] == routed(work)


def test_calls_that_orders_moved_are_counted():
    async def work(table, proxy):
        for engine in (0, 1, 2):
            table.want({"a": engine}, all_ready)
            await table.flushed()
        assert 3 == table.num_moved

    routed(work)


def test_another_proxy_is_told_everything_again_and_no_former_answer_counts():
    async def work(table, proxy):
        table.want({"a": 0, "b": 1}, all_ready)
        await table.flushed()
        proxy.go.clear()
        table.want({"a": 1, "b": 1}, all_ready)
        while len(proxy.orders) < 2:
            await asyncio.sleep(0)
        table.again()
        proxy.go.set()
        await table.flushed()

    assert [
        (1, {"a": "engine-0", "b": "engine-1"}),
        (2, {"a": "engine-1"}),
        (3, {"a": "engine-1", "b": "engine-1"}),
    ] == routed(work)


def of_shards(work):
    """Two tables at work; what each shard was told."""

    async def live():
        proxies = [Told(), Told()]
        tables = RouteTables(proxies, [f"engine-{engine}" for engine in range(8)])
        working = asyncio.create_task(tables.work())
        try:
            await work(tables, proxies)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        return [one.orders for one in proxies]

    return asyncio.run(live())


def test_each_shard_is_told_of_its_own_executions():
    async def work(tables, proxies):
        tables.want({"two": 0, "one": 1}, all_ready)
        await tables.flushed()
        tables.want({"two": 0, "one": 0}, all_ready)
        await tables.flushed()
        assert 3 == tables.num_moved

    assert (0, 1) == (shard_of("two", 2), shard_of("one", 2))
    assert [
        [(1, {"two": "engine-0"})],
        [(1, {"one": "engine-1"}), (2, {"one": "engine-0"})],
    ] == of_shards(work)


def test_a_shard_that_does_not_answer_keeps_no_other_from_being_told():
    async def work(tables, proxies):
        proxies[0].go.clear()
        tables.want({"two": 0, "one": 0}, all_ready)
        for engine in (1, 2):
            while len(proxies[1].orders) < engine:
                await asyncio.sleep(0)
            tables.want({"two": 0, "one": engine}, all_ready)
        while len(proxies[1].orders) < 3:
            await asyncio.sleep(0)
        flushed = asyncio.create_task(tables.flushed())
        await asyncio.sleep(0)
        assert not flushed.done()
        proxies[0].go.set()
        await flushed

    first, second = of_shards(work)

    assert [(1, {"two": "engine-0"})] == first
    assert ["engine-0", "engine-1", "engine-2"] == [routes["one"] for _, routes in second]


def test_only_a_shard_that_is_another_process_is_told_everything_again():
    async def work(tables, proxies):
        tables.want({"two": 0, "one": 1}, all_ready)
        await tables.flushed()
        tables.again(1)
        await tables.flushed()

    assert [
        [(1, {"two": "engine-0"})],
        [(1, {"one": "engine-1"}), (2, {"one": "engine-1"})],
    ] == of_shards(work)
