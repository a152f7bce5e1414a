"""Photos renamed by number."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import WORKSPACE, grade, text

NUMBERS = (1, 7, 12, 99, 104)
moved = [text(f"photos/photo-{n:03}.jpg") == f"picture {n}\n" for n in NUMBERS]
left = [path.name for path in (WORKSPACE / "photos").glob("*") if path.name.startswith("IMG_")]
grade([*moved, all(moved) and not left], keeps=[text("photos/readme.txt") == "holiday\n"])
