"""GGUF files written value by value, and a small model among them."""

import struct

import numpy as np

ALIGNMENT = 32


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def fact(value):
    """A value with its type before it."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case list():
            inner = b"".join(fact(one)[4:] for one in value)
            return struct.pack("<I", 9) + fact(value[0])[:4] + struct.pack("<Q", len(value)) + inner


def q8_0(values):
    """Blocks of 32: a scale, and whole numbers."""
    out = b""
    for block in values.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 127 or 1)
        steps = np.clip(np.rint(block / np.float32(scale)), -127, 127).astype(np.int8)
        out += scale.tobytes() + steps.tobytes()
    return 8, out


def q4_1(values):
    """Blocks of 32: a scale, a least value, and four bits each."""
    out = b""
    for block in values.reshape(-1, 32):
        least = np.float16(block.min())
        scale = np.float16((block.max() - block.min()) / 15 or 1)
        steps = np.clip(np.rint((block - np.float32(least)) / np.float32(scale)), 0, 15)
        steps = steps.astype(np.uint8)
        packed = bytes(int(steps[k]) | int(steps[k + 16]) << 4 for k in range(16))
        out += scale.tobytes() + least.tobytes() + packed
    return 3, out


def f32(values):
    return 0, values.astype("<f4").tobytes()


def f16(values):
    return 1, values.astype("<f2").tobytes()


def gguf(facts, tensors):
    """A file of facts and of (values, how they are stored) by name."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    head += b"".join(text(key) + fact(value) for key, value in facts.items())
    data = b""
    for name, (values, store) in tensors.items():
        kind, raw = store(values)
        sizes = values.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % ALIGNMENT)
    return head + b"\0" * (-len(head) % ALIGNMENT) + data


def small_model(rng):
    """A Llama of one layer, with the tokenizer of a few letters."""
    hidden, inner, heads, kv_heads = 64, 96, 4, 2
    letters = [chr(one) for one in range(ord("!"), ord("~") + 1)] + ["Ġ"]
    pieces = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "Ġt", "he", "Ġthe"]
    pieces += [f"<spare{number}>" for number in range(32 - len(pieces) % 32)]
    control = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    facts = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100_000.0,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if one in control else 1 for one in pieces],
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
        "general.odd": True,
    }

    def matrix(rows, columns):
        return rng.normal(0, 0.1, (rows, columns)).astype(np.float32)

    kv = hidden // heads * kv_heads
    tensors = {
        "token_embd.weight": (matrix(len(pieces), hidden), q8_0),
        "blk.0.attn_norm.weight": (np.ones(hidden, np.float32), f32),
        "blk.0.attn_q.weight": (matrix(hidden, hidden), q4_1),
        "blk.0.attn_k.weight": (matrix(kv, hidden), q4_1),
        "blk.0.attn_v.weight": (matrix(kv, hidden), q4_1),
        "blk.0.attn_output.weight": (matrix(hidden, hidden), q4_1),
        "blk.0.ffn_norm.weight": (np.ones(hidden, np.float32), f32),
        "blk.0.ffn_gate.weight": (matrix(inner, hidden), q4_1),
        "blk.0.ffn_up.weight": (matrix(inner, hidden), q4_1),
        "blk.0.ffn_down.weight": (matrix(hidden, inner), q4_1),
        "output_norm.weight": (np.ones(hidden, np.float32), f32),
    }
    return gguf(facts, tensors)
