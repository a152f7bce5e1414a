#!/bin/bash
set -euo pipefail
cat > ini.py <<'END'
def load(text):
    data, section, last = {}, "", None
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if not bare or bare[0] in "#;" and not line[0].isspace():
            continue
        if line[0].isspace() and last is not None:
            data[section][last] += "\n" + bare
            continue
        if bare.startswith("[") and bare.endswith("]"):
            section, last = bare[1:-1].strip(), None
            data.setdefault(section, {})
            continue
        signs = [place for sign in "=:" if (place := bare.find(sign)) > 0]
        if not signs:
            raise ValueError(f"line {number}: expected a key and a value")
        key, value = bare[: min(signs)].strip().lower(), bare[min(signs) + 1 :].strip()
        keys = data.setdefault(section, {})
        if key in keys:
            raise ValueError(f"line {number}: {key} is there twice")
        keys[key], last = value, key
    return data


def dump(data):
    lines = []
    for name in sorted(data, key=bool):
        if name:
            lines.append(f"[{name}]")
        for key, value in data[name].items():
            lines.append(f"{key} = " + value.replace("\n", "\n  "))
    return "\n".join(lines) + "\n"
END
