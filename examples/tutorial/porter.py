"""A porter: shows each letter of the inbox to the model, and puts it into the box it names.

It speaks OpenAI Chat Completions, and knows of the model an address and a key.
"""

import http.client
import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

BOXES = list("abcdef")
PUT = {
    "name": "put",
    "description": "Put.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
    },
}


def ask(text):
    """What the model says to this: a message as OpenAI's clients know it."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    messages = [{"role": "user", "content": text}]
    tools = [{"type": "function", "function": PUT}]
    body = json.dumps({"model": "policy", "messages": messages, "tools": tools})
    key = os.environ["OPENAI_API_KEY"]
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection = http.client.HTTPConnection(url.netloc, timeout=600)
    connection.request("POST", f"{url.path}/chat/completions", body, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status} from the model: {answer.read().decode()}")
    return json.load(answer)["choices"][0]["message"]


def box_in(message):
    """The box that it names by a call of the tool; None where there is none."""
    for call in message.get("tool_calls") or []:
        try:
            box = json.loads(call["function"]["arguments"])["place"]
        except (ValueError, KeyError, TypeError):
            continue
        if box in BOXES:
            return box
    return None


for letter in sorted(Path("inbox").iterdir()):
    box = box_in(ask(f"{sys.argv[1]} {letter.read_text().strip()}"))
    print(letter.name, "->", box or "stays")
    if box is not None:
        Path("boxes", box).mkdir(parents=True, exist_ok=True)
        letter.rename(Path("boxes", box, letter.name))
