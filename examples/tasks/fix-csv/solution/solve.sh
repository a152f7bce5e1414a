#!/bin/bash
set -euo pipefail
cat > table.py <<'END'
def parse(text):
    rows, row, place = [], [], 0
    while place < len(text):
        if text[place] == '"':
            field, place = "", place + 1
            while True:
                end = text.find('"', place)
                if end < 0:
                    raise ValueError("a quote is never closed")
                field += text[place:end]
                place = end + 1
                if text[place : place + 1] != '"':
                    break
                field += '"'
                place += 1
        else:
            end = place
            while end < len(text) and text[end] not in ",\n\r":
                end += 1
            field, place = text[place:end], end
        row.append(field)
        rest = text[place:]
        if rest.startswith(","):
            place += 1
            if place == len(text) or text[place] in "\r\n":
                row.append("")
                rest = text[place:]
            else:
                continue
        if rest.startswith("\r\n"):
            place += 2
        elif rest.startswith("\n"):
            place += 1
        elif rest:
            raise ValueError("text behind a quote")
        rows.append(row)
        row = []
    return rows


def write(rows):
    def quoted(field):
        if any(sign in field for sign in ',"\n\r'):
            return '"' + field.replace('"', '""') + '"'
        return field

    return "".join(",".join(map(quoted, row)) + "\n" for row in rows)
END
