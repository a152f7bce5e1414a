"""Encoding a 200k-token history: everything again, or only what is new behind stored ids."""

from dataclasses import replace
from itertools import count

from benchmarks.micro.cases import measure
from benchmarks.micro.growing import Growing, qwen3

from gyre.proxy.session.matching import TAIL_TOKENS
from gyre.types.conversation import Message
from gyre.types.protocols import Continuation, RenderedTokens

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
    numbers = count()

    def fresh(message: Message) -> Message:
        # Said anew every time, so that no cache of encoded text answers.
        return replace(message, text=f"{next(numbers)} {message.text}")

    def everything() -> RenderedTokens:
        return renderer.render([system, *map(fresh, messages)], tools)

    def bridge() -> Continuation:
        bridged = renderer.bridge(tail, output, [fresh(messages[-1])], tools)
        if bridged is None:
            raise RuntimeError("the renderer cannot bridge this turn")
        return bridged

    measure(
        "encode",
        {"everything": everything, "bridge": bridge},
        calls={"everything": 1, "bridge": 100},
        settings={
            "history_tokens": len(everything().ids),
            "new_tokens": len(bridge().ids),
            "messages": len(messages) + 1,
        },
    )


if __name__ == "__main__":
    main()
