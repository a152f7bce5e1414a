"""Encoding a 200k-token history: everything again, or only what is new behind stored ids."""

from benchmarks.micro.cases import measure
from benchmarks.micro.growing import Growing, qwen3

from gyre.proxy.place import TAIL_TOKENS

BODY_BYTES = 900_000


def main() -> None:
    renderer = qwen3()
    growing = Growing(renderer)
    growing.grow_to(BODY_BYTES, 4_800)
    last = growing.call(1_200)
    wire = growing.dialect.split(growing.conversation.body)
    (system, *messages) = [one for raw in wire.messages for one in growing.dialect.read(raw)]
    tools = last.preface.tools
    call = growing.records[-1].call
    output = growing.session.tree.output_ids(call).tolist()
    tail = last.prompt.ids[-TAIL_TOKENS:].tolist()
    new = messages[-1:]
    everything = renderer.render([system, *messages], tools)
    bridged = renderer.bridge(tail, output, new, tools)
    if bridged is None:
        raise RuntimeError("the renderer cannot bridge this turn")
    measure(
        "encode",
        {
            "everything": lambda: renderer.render([system, *messages], tools),
            "bridge": lambda: renderer.bridge(tail, output, new, tools),
        },
        calls={"everything": 1, "bridge": 100},
        settings={
            "history_tokens": len(everything.ids),
            "new_tokens": len(bridged.ids),
            "messages": len(messages) + 1,
        },
    )


if __name__ == "__main__":
    main()
