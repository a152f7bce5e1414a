"""Tools that clients run and offer by a type alone: their schemas, and the items of their calls.

Models of other makers were never taught these types, so that each is shown as a function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gyre.proxy.dialects import base
from gyre.types.conversation import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTool:
    """What the model is shown of a tool that is offered by its type."""

    description: str
    parameters: str
    """JSON Schema of the arguments, as JSON text."""


def _tool(
    description: str, properties: Mapping[str, object], required: Sequence[str] = ()
) -> TypedTool:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return TypedTool(description=description, parameters=msgspec.json.encode(schema).decode())


def _of(kind: str, description: str, **more: object) -> dict[str, object]:
    return {"type": kind, "description": description} | more


def _several(kind: str, description: str) -> dict[str, object]:
    return _of("array", description, items={"type": kind})


def _files(description: str, commands: Sequence[str], inserted: str) -> TypedTool:
    """A tool that views and edits files, one command at a time."""
    is_shared = inserted == "new_str"
    properties = {
        "command": {"type": "string", "enum": commands},
        "path": _of("string", "The file or directory; of every command but rename."),
        "view_range": _several("integer", "Of view: the first and last line; -1 is the end."),
        "file_text": _of("string", "Of create: the content of the new file."),
        "old_str": _of("string", "Of str_replace: the text to replace; it must be unique."),
        "new_str": _of(
            "string",
            "Of str_replace: what replaces it." + " Of insert: the text to insert." * is_shared,
        ),
        "insert_line": _of("integer", "Of insert: the line after which; 0 is the beginning."),
    }
    if not is_shared:
        properties[inserted] = _of("string", "Of insert: the text to insert.")
    if "rename" in commands:
        properties["old_path"] = _of("string", "Of rename: the present path.")
        properties["new_path"] = _of("string", "Of rename: the path to move it to.")
        return _tool(description, properties, ["command"])
    return _tool(description, properties, ["command", "path"])


_COMMANDS = ("view", "create", "str_replace", "insert")
_BASH = _tool(
    "Run a command in a bash shell that keeps its state between calls.",
    {
        "command": _of("string", "The command; not needed with restart."),
        "restart": _of("boolean", "Whether to start the shell anew."),
    },
)
_FIRST_EDITOR = _files("View, create and edit files.", (*_COMMANDS, "undo_edit"), "new_str")
_EDITOR = _files("View, create and edit files.", _COMMANDS, "insert_text")

ANTHROPIC: Mapping[str, TypedTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _FIRST_EDITOR,
    "text_editor_20250124": _FIRST_EDITOR,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _files(
        "Keep notes across conversations as files under /memories.",
        (*_COMMANDS, "delete", "rename"),
        "insert_text",
    ),
}
ANTHROPIC_HOSTED = (
    *("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "advisor_"),
    "mcp_toolset",
)
"""How the types of tools begin that Anthropic's servers run."""

RESPONSES: Mapping[str, TypedTool] = {
    "local_shell": _tool(
        "Run a command on the local machine.",
        {
            "command": _several("string", "The program and its arguments."),
            "working_directory": _of("string", "Where to run it."),
            "timeout_ms": _of("integer", "Milliseconds that it may take."),
        },
        ["command"],
    ),
    "shell": _tool(
        "Run commands in a shell, one after the other.",
        {
            "commands": _several("string", "The commands."),
            "timeout_ms": _of("integer", "Milliseconds that they may take."),
            "max_output_length": _of("integer", "Characters of output to keep."),
        },
        ["commands"],
    ),
    "apply_patch": _tool(
        "Create, update or delete a file.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _of("string", "The file."),
            "diff": _of(
                "string",
                "Lines that begin with + are added, with - removed, with a blank kept; @@ opens "
                "another place of the file. Of create_file and update_file.",
            ),
        },
        ["type", "path"],
    ),
}
RESPONSES_HOSTED = (
    *("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "tool_search"),
    "programmatic_tool_calling",
)
"""How the types of tools begin that OpenAI's servers run or load."""


class _Said(msgspec.Struct, omit_defaults=True):
    """Arguments that a call's item holds in a field of its own."""


class _LocalShell(_Said):
    command: list[str]
    working_directory: str | None = None
    timeout_ms: int | None = None
    env: dict[str, str] = {}
    user: str | None = None


class _Shell(_Said):
    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class _ApplyPatch(_Said):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How the items of one tool's calls are written."""

    prefix: str
    """Of an item's id."""
    field: str
    """Which holds what the call asks for."""
    said: msgspec.json.Decoder[Any]


FORMS: Mapping[str, CallForm] = {
    "local_shell": CallForm(prefix="lsh", field="action", said=msgspec.json.Decoder(_LocalShell)),
    "shell": CallForm(prefix="sh", field="action", said=msgspec.json.Decoder(_Shell)),
    "apply_patch": CallForm(
        prefix="apc", field="operation", said=msgspec.json.Decoder(_ApplyPatch)
    ),
}


class _CallItem(msgspec.Struct):
    call_id: str
    action: msgspec.Raw = msgspec.Raw()
    operation: msgspec.Raw = msgspec.Raw()


class _OutputItem(msgspec.Struct):
    call_id: str | None = None
    id: str | None = None
    """Of the call, where the output of a local shell has no field for it."""
    status: str | None = None
    output: msgspec.Raw = msgspec.Raw()


_CALL = msgspec.json.Decoder(_CallItem)
_OUTPUT = msgspec.json.Decoder(_OutputItem)


def read_call(raw: msgspec.Raw, tool: str) -> Message:
    """The call that such an item of the history is."""
    item, form = base.decode(_CALL, raw), FORMS[tool]
    sent = base.present(item.action if form.field == "action" else item.operation)
    said = base.decode(form.said, base.require(sent, form.field, "an object"), form.field)
    call = ToolCall(id=item.call_id, name=tool, arguments=msgspec.json.encode(said).decode())
    return Message(role="assistant", calls=(call,))


def read_output(raw: msgspec.Raw, tool: str) -> Message:
    """Outputs of a shell as their JSON; of a patch, first whether it was applied."""
    item = base.decode(_OUTPUT, raw)
    call = base.require(item.call_id or item.id, "call_id", "a call's id")
    text = base.text_of(item.output, "output")
    if tool == "apply_patch":
        text = "\n".join(part for part in (item.status, text) if part)
    return Message(role="tool", text=text, answers=call, name=tool)


def written(tool: str, arguments: str) -> dict[str, object] | None:
    """What an item's field says for these arguments; None where it could not say them all."""
    try:
        said = FORMS[tool].said.decode(arguments)
        if msgspec.to_builtins(said) != msgspec.json.decode(arguments):
            return None
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None
    found: dict[str, object] = msgspec.to_builtins(said)
    if isinstance(said, _ApplyPatch):
        return found if (said.diff is None) == (said.type == "delete_file") else None
    return {"type": "exec", "env": {}} | found if isinstance(said, _LocalShell) else found
