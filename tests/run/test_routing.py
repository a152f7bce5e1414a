"""The route table: engines that are ready, told once, one order at a time."""

import asyncio

from gyre.run.routing import RouteTable


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
        table = RouteTable(proxy, lambda engine: f"engine-{engine}")
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
        table.want({"b": 0}, all_ready)
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
        table.want({"a": 0}, lambda engine: False)
        await table.flushed()
        table.want({"a": 0}, all_ready)
        await table.flushed()

    assert [(1, {"a": "engine-0"}), (2, {"a": None}), (3, {"a": "engine-0"})] == routed(work)


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
