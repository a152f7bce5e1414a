"""Folders and files as a list says."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from grading import WORKSPACE, grade, text

site = WORKSPACE / "site"
grade([
    text("site/index.html") == "<h1>Hello</h1>\n",
    text("site/assets/css/main.css") == "body { margin: 0 }\n",
    (site / "assets/empty").is_dir(),
    (site / "posts/first.md").is_file() and text("site/posts/first.md") == "",
    text("site/posts/second.md") == "second post\n",
    (site / "robots.txt").is_file(),
])
