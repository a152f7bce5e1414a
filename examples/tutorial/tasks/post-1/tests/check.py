"""The part of the letters that lie in the right box, and whether each is there once."""

import json
import os
from pathlib import Path

right = os.environ["RIGHT"]  # the box of letter 1, that of letter 2, and so on
names = [f"{number}.json" for number in range(1, len(right) + 1)]
found = [Path("boxes", box, name).is_file() for name, box in zip(names, right, strict=True)]
once = all(len(list(Path().rglob(name))) == 1 for name in names)

results = Path(os.environ.get("GYRE_RESULTS", "/logs/verifier"))
numbers = {"sorted": sum(found) / len(found), "once": float(once)}
(results / "reward.json").write_text(json.dumps(numbers))
