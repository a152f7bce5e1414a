#!/bin/bash
set -euo pipefail
cat > wrap.py <<'END'
import sys


def filled(words, width):
    lines, line = [], ""
    for word in words:
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not word:
            continue
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def main(arguments, text):
    if len(arguments) != 1 or not arguments[0].isdecimal() or int(arguments[0]) < 10:
        return 2
    width, printed = int(arguments[0]), []
    paragraphs = [[]]
    for line in text.splitlines():
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    for paragraph in filter(None, paragraphs):
        blocks = []
        for line in paragraph:
            if line.startswith("- "):
                blocks.append((True, line[2:].split()))
            elif blocks:
                blocks[-1][1].extend(line.split())
            else:
                blocks.append((False, line.split()))
        lines = []
        for is_entry, words in blocks:
            if is_entry:
                inner = filled(words, width - 2)
                lines += [f"{'- ' if not n else '  '}{one}" for n, one in enumerate(inner or [""])]
            else:
                lines += filled(words, width)
        printed.append("\n".join(lines))
    if printed:
        print("\n\n".join(printed))
    return 0


sys.exit(main(sys.argv[1:], sys.stdin.read()))
END
