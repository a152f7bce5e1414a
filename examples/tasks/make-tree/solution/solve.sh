#!/bin/bash
set -euo pipefail
mkdir -p site
grep -v '^#' layout.txt | while IFS= read -r line; do
  case "$line" in
    */) mkdir -p "site/$line" ;;
    *" = "*) name="${line%% = *}"; mkdir -p "site/$(dirname "$name")"; printf '%s\n' "${line#* = }" > "site/$name" ;;
    *) mkdir -p "site/$(dirname "$line")"; : > "site/$line" ;;
  esac
done
