"""The scripted engine that takes orders: its pace, its pauses, its weights and its blocks."""

import asyncio
import json
from array import array
from dataclasses import replace

import pytest
import torch
from tests.inference.support import slow_engine
from tests.inference.support.serving import Client
from tests.testing.support.virtual_time import Reader, hurried, now_s, settle

from gyre.config.sections import EngineConfig, LimitsConfig
from gyre.inference.engine.request import KVBlocks
from gyre.inference.kv_transfer import SharedFolderKvStore, packed, unpacked
from gyre.inference.server.protocol import ServedModel
from gyre.inference.server.server import Server
from gyre.model.checkpoint import save
from gyre.model.checkpoint_store import MANIFEST
from gyre.testing.fake_kv import values
from gyre.testing.script import FastCoder, Script, ScriptedReply, after, always
from gyre.testing.timed_engine import TimedEngine, engine
from gyre.testing.timed_script import Pace, TimedReply
from gyre.testing.tokenizer import tokenizer, write_tokenizer
from gyre.types.errors import ConfigError, EngineDraining, EngineError, ModelError, OutOfMemory
from gyre.types.sampling import GenerateRequest, SamplingParams

CODER = FastCoder(tokenizer())
TEN = tuple(range(40, 50))
SCRIPT = Script(
    [after("quick", ScriptedReply(text="done")), always(TimedReply(ids=TEN, reply_s=10.0))]
)
SECTION = EngineConfig(capacity=2, kv_tokens=4096, block_tokens=4)
PACE = Pace(chunk_tokens=2)


def made(script=SCRIPT, *, pace=PACE, name="a", **changes):
    section = replace(SECTION, **changes)
    return TimedEngine(name, script, CODER, section=section, pace=pace)


def prompt(said):
    return CODER.encode(f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")


def ask(said="slow", name="ask", *, sampled=(), max_tokens=100, **sampling):
    return GenerateRequest(
        id=name,
        input_ids=array("i", [*prompt(said), *sampled]).tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        execution="e",
    )


def full(num_tokens):
    """Tokens of the whole blocks among these."""
    return num_tokens // SECTION.block_tokens * SECTION.block_tokens


def test_a_reply_takes_the_time_it_says_chunk_by_chunk():
    read = hurried(in_loop(lambda: Reader(made(), ask()).task))

    assert list(TEN) == read.ids
    assert [2.0, 4.0, 6.0, 8.0, 10.0] == read.times_s
    assert ("stop", [prompt("slow"), None, None, None, None]) == (
        read.finish,
        [chunk.prompt_ids for chunk in read.chunks],
    )


async def in_loop(make):
    return await make()


@pytest.mark.parametrize(
    ("pace", "expected_s"),
    [
        (Pace(), 0.0),
        (Pace(tokens_per_s=4.0), 2.5),
        (Pace(tokens_per_s=4.0, reply_s=3.0), 3.0),
        (Pace(tokens_per_s=4.0, scale=2.0), 5.0),
        (Pace(reply_s=3.0, scale=0.5), 1.5),
    ],
)
def test_a_pace_stands_for_replies_that_say_none(pace, expected_s):
    script = Script([always(ScriptedReply(ids=TEN))])
    read = hurried(in_loop(lambda: Reader(made(script, pace=pace), ask()).task))

    assert expected_s == read.times_s[-1]


def test_an_empty_reply_takes_its_time_too():
    script = Script([always(TimedReply(ids=(), reply_s=3.0))])
    read = hurried(in_loop(lambda: Reader(made(script), ask()).task))

    assert ([], "stop", [3.0]) == (read.ids, read.finish, read.times_s)
    assert prompt("slow") == read.chunks[0].prompt_ids


def test_what_was_said_elsewhere_is_not_waited_for_again():
    read = hurried(in_loop(lambda: Reader(made(), ask(sampled=TEN[:6])).task))

    assert (list(TEN[6:]), 4.0) == (read.ids, read.times_s[-1])


def test_a_reply_ends_early_at_its_limit_or_at_a_stop_id():
    async def flow():
        few = await Reader(made(), ask(max_tokens=5)).task
        stopped = await Reader(made(), ask(stop_ids=(TEN[2],))).task
        return few, stopped

    few, stopped = hurried(flow())

    assert (list(TEN[:5]), "length", 5.0) == (few.ids, few.finish, few.times_s[-1])
    assert (list(TEN[:3]), "stop") == (stopped.ids, stopped.finish)


def test_more_calls_than_the_capacity_wait_for_their_turn():
    async def flow():
        engine = made()
        readers = [Reader(engine, ask(f"slow {one}", str(one))) for one in range(3)]
        await settle()
        capacity = await engine.capacity()
        return capacity, [(await one.task).times_s[-1] for one in readers]

    capacity, ends_s = hurried(flow())

    assert (2, 1, 2) == (capacity.running, capacity.waiting, capacity.most_running)
    assert [10.0, 10.0, 20.0] == ends_s


def test_a_call_without_room_waits_until_blocks_are_let_go():
    num_tokens = len(prompt("slow")) + len(TEN)

    async def flow():
        engine = made(kv_tokens=num_tokens + SECTION.block_tokens)
        readers = [Reader(engine, ask(f"slow {one}", str(one))) for one in range(2)]
        return [(await one.task).times_s[-1] for one in readers]

    assert [10.0, 20.0] == hurried(flow())


def test_a_paused_engine_says_nothing_and_its_clock_stands():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await asyncio.sleep(5.0)
        await engine.pause()
        late = Reader(engine, ask("quick", "late"))
        await asyncio.sleep(100.0)
        during = (len(reader.ids), late.ids, (await engine.health()).detail)
        await engine.resume()
        return during, await reader.task, await late.task

    during, read, late = hurried(flow())

    assert (4, [], "paused") == during
    assert [2.0, 4.0, 106.0, 108.0, 110.0] == read.times_s
    assert [105.0] == late.times_s


def test_resuming_what_is_not_paused_changes_nothing():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await asyncio.sleep(1.0)
        await engine.resume()
        return await reader.task

    assert 10.0 == hurried(flow()).times_s[-1]


def test_tokens_bear_the_version_of_the_weights_that_said_them():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await asyncio.sleep(5.0)
        await engine.load({}, version=3)
        return await reader.task, await engine.health()

    read, health = hurried(flow())

    assert [0] * 4 + [3] * 6 == read.versions
    assert 3 == health.version


def test_new_weights_make_running_calls_compute_again_unless_told_otherwise():
    num_prompt = len(prompt("slow"))

    async def flow(keep_kv):
        engine = made(pace=Pace(chunk_tokens=2, prefill_s=0.1))
        reader = Reader(engine, ask())
        start_s = num_prompt * 0.1
        await asyncio.sleep(start_s + 5.0)
        await engine.load({}, version=1, keep_kv=keep_kv)
        read = await reader.task
        return engine.counts.prefilled, round(read.times_s[-1] - start_s, 6)

    assert (num_prompt, 10.0) == hurried(flow(keep_kv=True))
    assert (2 * num_prompt + 4, round(10.0 + (num_prompt + 4) * 0.1, 6)) == hurried(
        flow(keep_kv=False)
    )


def test_weights_loaded_during_a_prefill_begin_it_anew():
    num_prompt = len(prompt("slow"))

    async def flow():
        engine = made(pace=Pace(chunk_tokens=2, prefill_s=1.0))
        reader = Reader(engine, ask())
        await asyncio.sleep(1.0)
        await engine.load({}, version=1)
        return engine, await reader.task

    made_, read = hurried(flow())

    assert num_prompt == made_.counts.prefilled
    assert 1.0 + num_prompt + 10.0 == read.times_s[-1]


def test_a_cancelled_call_ends_with_what_it_has():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await asyncio.sleep(3.0)
        await engine.load({}, version=1)
        await asyncio.sleep(2.0)
        chunks = await engine.cancel("ask")
        read = await reader.task
        return chunks, read, await engine.cancel("ask"), await engine.capacity()

    chunks, read, again, capacity = hurried(flow())

    assert [(list(TEN[:2]), 0, None), (list(TEN[2:4]), 1, None), ([], None, "abort")] == [
        (chunk.ids, chunk.version, chunk.finish) for chunk in chunks
    ]
    assert (list(TEN[:4]), "abort", 5.0) == (read.ids, read.finish, read.times_s[-1])
    assert ((), 0) == (again, capacity.running)


def test_an_id_is_refused_while_its_call_is_not_over():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await settle()
        with pytest.raises(EngineError, match="not over") as error:
            await Reader(engine, ask()).task
        await engine.cancel("ask")
        return error.value.retryable, (await Reader(engine, ask()).task).ids, await reader.task

    retryable, ids, _ = hurried(flow())

    assert not retryable
    assert list(TEN) == ids


def test_what_no_rule_answers_is_refused_and_leaves_nothing():
    async def flow():
        engine = made(Script([after("quick", ScriptedReply(text="done"))]))
        with pytest.raises(EngineError, match="no rule") as error:
            await Reader(engine, ask()).task
        return error.value.retryable, (await engine.capacity()).waiting

    assert (False, 0) == hurried(flow())


def test_a_resting_engine_has_ended_its_calls_and_refuses_others():
    async def flow():
        engine = made()
        readers = [Reader(engine, ask(f"slow {one}", str(one))) for one in range(3)]
        await asyncio.sleep(3.0)
        pin = await engine.pin("0")
        await engine.offload(offload_weights=True)
        ended = [(await one.task).finish for one in readers]
        health = await engine.health()
        with pytest.raises(EngineDraining):
            await Reader(engine, ask("quick")).task
        with pytest.raises(EngineDraining):
            await engine.pin(prompt("slow 0"))
        with pytest.raises(EngineError, match="lost"):
            await engine.export(pin)
        await engine.load({}, version=2)
        await engine.wake()
        found = await engine.pin(prompt("slow 0"))
        return ended, health, (await Reader(engine, ask("quick")).task).versions, found.num_tokens

    ended, health, versions, found = hurried(flow())

    assert ["abort"] * 3 == ended
    assert (False, "resting") == (health.ready, health.detail)
    assert ({2}, 0) == (set(versions), found)


def test_readers_of_a_closed_engine_are_told():
    async def flow():
        engine = made()
        reader = Reader(engine, ask())
        await settle()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await reader.task
        with pytest.raises(EngineError, match="closed"):
            await engine.health()

    hurried(flow())


def test_a_prompt_is_computed_once_and_found_by_those_that_begin_like_it():
    common = "the same long story about a file that is read and written again "

    async def flow():
        engine = made(pace=Pace(prefill_s=1.0))
        first = Reader(engine, ask(f"{common} quick", "first"))
        second = Reader(engine, ask(f"{common} quick now", "second"))
        await first.task
        await second.task
        return engine.counts, first.times_s[-1], second.times_s[-1]

    counts, first_s, second_s = hurried(flow())
    one, two = prompt(f"{common} quick"), prompt(f"{common} quick now")
    same = next(at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)

    assert full(same) == counts.found
    assert len(one) + len(two) - full(same) == counts.prefilled
    assert (float(len(one)), float(len(one) + len(two) - full(same))) == (first_s, second_s)


def test_the_next_turn_of_a_conversation_finds_the_last():
    async def flow():
        engine = made()
        first = await Reader(engine, ask()).task
        longer = [*prompt("slow"), *first.ids, *prompt("quick")]
        more = replace(ask(name="more"), input_ids=array("i", longer).tobytes())
        await Reader(engine, more).task
        return engine.counts, len(longer)

    counts, num_longer = hurried(flow())
    said = len(prompt("slow")) + len(TEN)

    # What was sampled last is computed only with what follows it.
    assert full(said - 1) == counts.found
    assert len(prompt("slow")) + num_longer - full(said - 1) == counts.prefilled


async def moved(source, destination, *, carried):
    """A call that is half said at the source and goes on at the destination."""
    reader = Reader(source, ask())
    await asyncio.sleep(5.0)
    pin = await source.pin("ask")
    chunks = await source.cancel("ask")
    await reader.task
    sampled = [one for chunk in chunks for one in chunk.ids]
    if carried:
        blocks = unpacked(packed(await source.export(pin)))
        held = await destination.import_(blocks)
        assert pin.num_tokens == held.num_tokens
    await source.release(pin)
    rest = await Reader(destination, ask(sampled=sampled, max_tokens=100 - len(sampled))).task
    return sampled + rest.ids


@pytest.mark.parametrize("carried", [True, False])
def test_a_call_that_moves_computes_only_what_was_not_carried(carried):
    async def flow():
        source, destination = made(name="source"), made(name="destination")
        ids = await moved(source, destination, carried=carried)
        return ids, source.counts, destination.counts

    ids, source, destination = hurried(flow())
    num_tokens = len(prompt("slow")) + 4
    num_carried = full(num_tokens - 1) if carried else 0

    assert list(TEN) == ids
    assert (num_carried, num_carried) == (source.exported, destination.imported)
    assert num_carried == destination.found
    assert num_tokens - num_carried == destination.prefilled


def test_blocks_that_are_not_what_they_must_be_are_refused():
    async def flow():
        source, destination = made(name="source"), made(name="destination")
        await Reader(source, ask()).task
        pin = await source.pin(prompt("slow"))
        blocks = await source.export(pin)
        free = (await destination.capacity()).available_blocks
        spoiled = blocks.values.clone()
        spoiled[0, 1, 0, 3, 2] += 1.0
        ids = array("i", prompt("slow")[: pin.num_tokens])
        ids[0] += 1
        for wrong, said in [
            (replace(blocks, values=spoiled), "token 3"),
            (replace(blocks, token_ids=ids.tobytes()), "token 0"),
            (replace(blocks, values=blocks.values[..., :2]), "shape"),
            (replace(blocks, version=1), "weights 1"),
        ]:
            with pytest.raises(EngineError, match=said):
                await destination.import_(wrong)
        return free, await destination.capacity(), destination.counts.imported

    free, capacity, imported = hurried(flow())

    assert (free, 0) == (capacity.available_blocks, imported)


def test_pinned_blocks_are_not_given_away_and_released_ones_are():
    async def flow():
        engine = made(kv_tokens=64)
        await Reader(engine, ask("quick")).task
        pin = await engine.pin(prompt("quick"))
        held = (await engine.capacity()).available_blocks
        await engine.release(pin)
        await engine.release(pin)
        return pin.num_tokens, held, (await engine.capacity()).available_blocks

    num_tokens, held, free = hurried(flow())

    assert full(len(prompt("quick"))) == num_tokens
    assert (16 - num_tokens // 4, 16) == (held, free)


def test_what_is_over_or_released_can_neither_be_pinned_nor_exported():
    async def flow():
        engine = made()
        await Reader(engine, ask()).task
        with pytest.raises(EngineError, match="over or unknown"):
            await engine.pin("ask")
        pin = await engine.pin(prompt("slow"))
        await engine.release(pin)
        with pytest.raises(EngineError, match="released"):
            await engine.export(pin)

    hurried(flow())


def test_no_room_for_blocks_taken_in_is_said():
    tokens = array("i", range(4096 + 4))

    async def flow():
        small, large = made(), made(kv_tokens=2**13)
        blocks = KVBlocks(token_ids=tokens.tobytes(), version=0, values=values(tokens, 0))
        assert 4100 == (await large.import_(blocks)).num_tokens
        await small.import_(blocks)

    with pytest.raises(OutOfMemory, match="1025 blocks taken in: 1024 of 1024 left"):
        hurried(flow())


@pytest.fixture
def checkpoint(tmp_path):
    network = slow_engine.network(seed=1)
    save(network, tmp_path / "weights", version=4)
    return network, tmp_path / "weights"


def test_a_folder_is_checked_and_a_damaged_one_leaves_the_version(checkpoint):
    _, folder = checkpoint

    async def flow():
        engine = made()
        await engine.load(folder, version=4)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
        with pytest.raises(ModelError, match="hash"):
            await engine.load(folder, version=5)
        with pytest.raises(ModelError, match="folder"):
            await engine.load(folder / "none", version=5)
        return (await engine.health()).version

    assert 4 == hurried(flow())


def factory(folder, **options):
    return engine(slow_engine.network(), name="a", section=SECTION, folder=folder, options=options)


def test_by_name_it_plays_a_script_into_a_log_and_loads_into_its_network(checkpoint, tmp_path):
    trained, folder = checkpoint
    network = slow_engine.network()
    write_tokenizer(tmp_path / "model")
    script = f"{__file__}:verbatim"
    made_ = engine(
        network,
        name="a",
        section=SECTION,
        folder=tmp_path / "model",
        options={"script": script, "log": str(tmp_path / "log"), "tokens_per_s": "2"},
    )
    asked = GenerateRequest(
        id="ask",
        input_ids=array("i", range(9)).tobytes(),
        sampling=SamplingParams(max_tokens=8),
        execution="e",
    )

    async def flow():
        read = await Reader(made_, asked).task
        await made_.load(folder, version=4)
        await made_.close()
        return read

    read = hurried(flow())
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]

    assert ([5, 6, 7, 8], 2.0) == (read.ids, read.times_s[-1])
    assert [
        {"engine": "a", "event": "prefill", "ask": "ask", "found": 0, "computed": 9, "version": 0},
        {"engine": "a", "event": "load", "version": 4, "keep_kv": False},
    ] == lines
    assert slow_engine.CONTEXT == made_.context_tokens
    for name, one in trained.module.named_parameters():
        assert torch.equal(one, dict(network.module.named_parameters())[name])


def verbatim():
    """A script for the engine that is made by name."""
    return Script([always(ScriptedReply(ids=(5, 6, 7, 8)))])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "script: expected"),
        ({"script": "no_such_module:script"}, "script: no_such_module:script"),
        ({"script": "json:no_such_function"}, "script: json:no_such_function"),
        ({"script": f"{__file__}:verbatim", "speed": "1"}, "speed: unknown option; known here: "),
        ({"script": f"{__file__}:verbatim", "scale": "fast"}, "scale: expected a number"),
        ({"script": f"{__file__}:verbatim", "prefill_s": "-1"}, "prefill_s: expected a number"),
        ({"script": f"{__file__}:verbatim", "tokens_per_s": "0"}, "tokens_per_s: .* above 0"),
        ({"script": f"{__file__}:verbatim", "chunk_tokens": "0.5"}, "chunk_tokens: .* whole"),
        ({"script": f"{__file__}:verbatim", "log": "/no/such/folder/log"}, "log: /no/such"),
    ],
)
def test_options_that_cannot_be_are_named(options, said, tmp_path):
    write_tokenizer(tmp_path)

    with pytest.raises(ConfigError, match=said):
        factory(tmp_path, **options)


def test_a_model_without_a_tokenizer_cannot_be_played(tmp_path):
    with pytest.raises(ModelError, match="tokenizer"):
        factory(tmp_path, script=f"{__file__}:verbatim")


def test_its_version_is_the_folders(checkpoint):
    _, folder = checkpoint
    write_tokenizer(folder)

    async def version():
        return (await factory(folder, script=f"{__file__}:verbatim").health()).version

    assert (folder / MANIFEST).is_file()
    assert 4 == hurried(version())


def test_the_hurried_loop_counts_only_what_is_waited_for():
    async def flow():
        await asyncio.sleep(1000.0)
        await asyncio.to_thread(int)
        return now_s()

    assert 1000.0 == hurried(flow())


def served(engine, kv_store=None):
    about = ServedModel(model="m", name="m", context_tokens=4096, tokenizer=None, end_ids=())
    server = Server(
        engine, about, limits=LimitsConfig(), kv_bytes=engine.kv_bytes, kv_store=kv_store
    )
    return Client(server)


def test_behind_a_server_a_call_moves_with_its_blocks(tmp_path):
    """SPEC 2.3: pinned, ended, put, taken, continued, released."""

    async def flow():
        source, destination = made(name="source"), made(name="destination")
        here, there = served(source, kv_store), served(destination, kv_store)
        body = {"input_ids": prompt("slow"), "rid": "r"}
        answer = asyncio.create_task(here.post("/generate", body))
        await asyncio.sleep(5.0)
        pin = (await here.post("/kv/pin", {"rid": "r"})).json
        await here.post("/abort_request", {"rid": "r"})
        said = (await answer).json["output_ids"]
        put = (await here.post("/kv/put", {"pin": pin["pin"], "to": "r-1"})).json
        await there.post("/kv/take", {"from": put["from"]})
        await here.post("/kv/release", {"pin": pin["pin"]})
        rest = await there.post("/generate", {**body, "input_ids": [*body["input_ids"], *said]})
        return said + rest.json["output_ids"], pin["tokens"], destination.counts

    kv_store = SharedFolderKvStore(tmp_path)
    ids, num_carried, counts = hurried(flow())
    kv_store.close()

    assert list(TEN) == ids
    assert (full(len(prompt("slow")) + 3), num_carried) == (num_carried, counts.found)
    assert len(prompt("slow")) + 4 - num_carried == counts.prefilled


def test_behind_a_server_it_is_paused_rested_and_asked_for_its_health():
    async def flow():
        engine = made()
        client = served(engine)
        asked = {"input_ids": prompt("slow")}
        answer = asyncio.create_task(client.post("/generate", asked))
        await asyncio.sleep(1.0)
        await client.post("/pause_generation", {"mode": "in_place"})
        await asyncio.sleep(50.0)
        await client.post("/continue_generation")
        whole = (await answer).json["output_ids"]
        at_s = now_s()
        health = await client.get("/health_generate")
        await client.post("/release_memory_occupation")
        refused = await client.post("/generate", asked)
        await client.post("/resume_memory_occupation")
        return whole, at_s, health.status, refused.status, await client.get("/health")

    whole, at_s, health, refused, last = hurried(flow())

    assert (list(TEN), 60.0) == (whole, at_s)
    assert (200, 503, 200) == (health, refused, last.status)
