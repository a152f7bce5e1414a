"""Shell scripts in local sandboxes, for tests to look at what they can do."""

import asyncio

from tests.sandboxes.support.script_sandbox import ScriptSandbox

from gyre.sandboxes.local.sandbox import LocalSandbox, SandboxLayout


class Inside(ScriptSandbox):
    def make(self, settings):
        return LocalSandbox(self.mark, SandboxLayout(**settings), **self.made)


def ran(folder, script, *, place=None, made=None, **variables):
    """The status and the output of a script."""
    inside = Inside(folder, place or {}, made or {})
    status = asyncio.run(inside.run(script, **variables))
    return status, inside.output
