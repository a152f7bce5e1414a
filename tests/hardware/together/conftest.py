"""All real parts together run with -m together only."""

import sys
from pathlib import Path

# Neither this folder nor the benchmarks are installed, and `real` is beside the tests of engines.
sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
