#!/bin/bash
set -euo pipefail
printf 'Hello, workspace!\nGoodbye.\n' > greeting.txt
