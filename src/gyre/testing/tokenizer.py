"""A small byte-level BPE tokenizer, made in the process from the words below, for tests."""

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Added tokens that are not special: a decoder never leaves them out."""
QWEN3 = CHATML + MARKUP

# Runs of newlines stick to the punctuation before them, as in the tokenizers of real models: a
# template's own newline could merge with the end of a reply (T03).
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VOCABULARY = 6000


@cache
def tokenizer_json(added: tuple[str, ...] = QWEN3) -> str:
    """The whole tokenizer as its JSON file; equal in every process and on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens(
        [AddedToken(text, special=text not in MARKUP, normalized=False) for text in added]
    )
    return tokenizer.to_str()


@cache
def tokenizer(added: tuple[str, ...] = QWEN3) -> Tokenizer:
    """One shared tokenizer; its added tokens have the highest ids, in the order given."""
    return Tokenizer.from_str(tokenizer_json(added))


def write_tokenizer(folder: Path, added: tuple[str, ...] = QWEN3) -> Path:
    """`folder` as a model folder that holds nothing but this tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(added), encoding="utf-8")
    return folder


def _corpus() -> list[str]:
    words = _WORDS.split()
    lines = [f" {word}" for word in words]
    lines += [word for word in words if len(word) > 2]
    lines += [f" {word.capitalize()}" for word in words[:200]]
    lines += [f"\n{word.capitalize()}" for word in words[:100]]
    return [*lines, *_SHAPES.splitlines(), *_PUNCTUATION]


_PUNCTUATION = [
    '{"', '":', '", "', '": "', '"}', '"}}', '": {"', "},", "],", '"]', '["', "()", "():", "();",
    "(\n", ")\n", ",\n", ".\n", ".\n\n", "!\n", "!\n\n", "?\n", "?\n\n", ":\n", ":\n\n", ";\n",
    "\n\n", "\n\n\n", "    ", "        ", "   ", "  ", "\n    ", "\n        ", "...", "---", "==",
    "!=", "->", "=>", "::", "//", "/*", "*/", "<!--", "-->", "```", "```\n", "**", " {", " }", " (",
    " =", " ==", " +", " -", " #", " ##", " *", " [", ' "', " '", "='", '="', "')", '")', "/", "_",
]  # fmt: skip

_SHAPES = """\
{"type": "function", "function": {"name": "read_file", "description": "Read a file from disk"}}
{"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
{"name": "run_command", "arguments": {"command": "ls -la", "timeout_s": 30, "background": false}}
{"role": "assistant", "content": null, "tool_calls": [{"id": "call_1"}], "is_error": true}
def main(argv: list[str]) -> int:
    for index, value in enumerate(values):
        if value is not None and value != 0:
            print(f"{index}: {value!r}")
    return self.items.get(name, default)
class Reader(Protocol):
    def __init__(self, path: Path, *, size: int = 0) -> None:
import json, os, re, sys, subprocess
from dataclasses import dataclass, field
    raise ValueError("expected a number, found nothing") from error
assert expected == found, message
diff --git a/src/main.py b/src/main.py
total 8 -rw-r--r-- 1 root root 4096 Jan 12:00 README.md
Traceback (most recent call last): File "/tmp/test.py", line 1, in <module>
"""

# The two hundred at the top are learned with a capital as well.
_WORDS = """
the of and to a in is it you that he was for on are with as his they be at one have this from or
had by not but what all were when we there can an your which their said if do will each about how
up out them then she many some so these would other into has more her two like him see time could
no make than first been its who now people my made over did down only way find use may water long
little very after words called just where most know get through back much before go good new write
our used me man too any day same right look think also around another came come work three word
must because does part even place well such here take why help put different away again off went
old number great tell men say small every found still between name should home big give air line
set own under read last never us left end along while might next sound below saw something thought
both few those always show large often together asked house world going want school important until
form food keep children feet land side without boy once animal life enough took sometimes four head
above kind began almost live page got earth need far hand high year mother light country father let
night picture being study second soon story since white ever paper hard near sentence better best
across during today however sure knew try told young sun thing whole hear example heard several
change answer room sea against top turned learn point city play toward five himself usually money
seen car morning body upon family later turn move face door cut done group true half red fish
plants living black eat short run book gave order open ground cold really table remember tree
course front space inside ago sad early learned brought close nothing though idea lived became add
become grow draw yet less wind behind cannot letter among able dog shown mean rest perhaps certain
six feel fire ready green yes built special ran full town complete oh person hot anything hold
state list stood hundred ten fast felt kept notice strong voice probably area horse matter stand
box start class piece surface river common stop am talk whether fine round dark past ball girl
tried road questions blue meaning coming instead either held already warm gone finally summer
understand moon mind outside power says problem longer winter deep heavy carefully follow beautiful
everyone leave everything game system bring watch shell dry within floor ice ship themselves begin
fact third quite carry distance although sat possible heart real simple snow rain suddenly leaves
easy lay size wild weather miss pattern sky walked main someone center field stay boat question
wide least tiny hour happened foot care low else gold build glass rock tall alone bottom check
reading fall poor map friend language job music buy window mark heat grew listen ask single clear
energy week explain lost spring travel wrote farm circle whose correct bed measure straight base
mountain caught hair bird wood color war fly yourself seem thus square moment teacher happy bright
sent present plan rather length speed machine information except figure you're free fell suppose
natural ocean government baby grass plane street couldn't reason difference maybe history mouth
middle step child strange wish soil human trip woman eye milk choose north seven famous late pay
sleep iron trouble store beside oil modern fun catch business reach lot won't case speak shape
eight edge soft village object age minute wall meet record copy forest especially necessary he's
unit flat direction south subject skin wasn't yellow party force test bad temperature pair ahead
wrong practice sand tail wait difficult general cover material isn't thousand sign guess forward
huge ride region nor period blood rich team corner cat amount garden led note various race bit
result brother addition doesn't dead weight thin stone hit wife island we'll opposite born sense
cattle million anyone rule science afraid women produce pull son meant broken interest chance thick
sight pretty train fresh drive lead break sit bought radio method king similar return corn decide
position bear hope song engine board control spread evening brown clean wouldn't section spent ring
teeth quiet ancient stick afternoon silver nose century therefore level type input output token
tokens file files folder path paths command commands error errors message messages model models
tool tools call calls function functions argument arguments parameter parameters results returns
value values variable string strings integer boolean float array objects json text content user
assistant agent agents request requests response responses server client proxy stream event events
data byte bytes code source python module import package version install update create delete
remove rename edit replace insert append search grep match matches lines directory repository
commit branch merge diff patch status log logs debug warning exception traceback timeout retry
limit memory process thread cache key keys index item items dict tuple width height offset default
option options config settings environment compile execute script print format parse encode decode
sample sampling policy reward training weights loss gradient batch sequence prompt context summary
session execution sandbox harness task tasks attempt evaluate assessment score valid invalid
expected actual failed passed missing unknown empty total count sum average maximum minimum please
sorry thanks welcome hello implementation description documentation instruction instructions
reminder schema properties required additional enabled disabled background foreground absolute
relative current previous working running finished completed pending started stopped cancelled
following
"""
