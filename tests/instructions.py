"""How many bytecodes some work takes: the same on every machine, however busy it is."""

import sys


def instructions(work):
    """Of everything that it calls, too."""
    counted = 0

    def count(frame, event, _):
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted
