"""Finding the place of a 900 KB request in the tree, beside merely parsing its JSON."""

import orjson
from benchmarks.micro.cases import measure
from benchmarks.micro.growing import Growing, qwen3

BODY_BYTES = 900_000


def main() -> None:
    growing = Growing(qwen3())
    growing.grow_to(BODY_BYTES, 4_800)
    pending = growing.call(1_200)
    body = growing.conversation.body
    wire = growing.dialect.split(body)
    measure(
        "match",
        {
            "parse": lambda: orjson.loads(body),
            "split": lambda: growing.dialect.split(body),
            "evidence": lambda: growing.dialect.evidence(wire, {}),
            "position": growing.position,
        },
        calls={"parse": 50, "split": 50, "evidence": 50, "position": 50},
        settings={"body_bytes": len(body), "prompt_tokens": pending.prompt_tokens},
    )


if __name__ == "__main__":
    main()
