#!/bin/bash
set -euo pipefail
cat > cache.py <<'END'
class Cache:
    def __init__(self, size):
        if size < 1:
            raise ValueError(size)
        self.size = size
        self.entries = {}

    def get(self, key, default=None):
        if key not in self.entries:
            return default
        value = self.entries.pop(key)
        self.entries[key] = value
        return value

    def put(self, key, value):
        self.entries.pop(key, None)
        self.entries[key] = value
        if len(self.entries) > self.size:
            self.entries.pop(next(iter(self.entries)))

    def keys(self):
        return list(self.entries)

    def __len__(self):
        return len(self.entries)
END
