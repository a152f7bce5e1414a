#!/bin/bash
set -euo pipefail
cd photos
for old in IMG_*.JPG; do n="${old#IMG_}"; n="${n%.JPG}"; mv "$old" "$(printf 'photo-%03d.jpg' "$n")"; done
