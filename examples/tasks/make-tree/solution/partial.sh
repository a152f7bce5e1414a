#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
mkdir -p site/assets/css site/assets/empty site/posts; : > site/posts/first.md; : > site/robots.txt
