class Cache:
    def __init__(self, size):
        self.size = size
        self.entries = {}

    def get(self, key, default=None):
        return self.entries.get(key) or default

    def put(self, key, value):
        if len(self.entries) >= self.size:
            self.entries.pop(next(iter(self.entries)))
        self.entries[key] = value

    def keys(self):
        return sorted(self.entries)

    def __len__(self):
        return len(self.entries)
