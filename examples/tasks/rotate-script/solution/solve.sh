#!/bin/bash
set -euo pipefail
cat > rotate.sh <<'END'
file=$1
keep=$2
case "$keep" in
  ''|*[!0-9]*|0) echo "usage: rotate.sh FILE KEEP"; exit 2 ;;
esac
if [ ! -f "$file" ]; then echo "no $file"; exit 1; fi
rm -f "$file.$keep"
n=$keep
while [ "$n" -gt 1 ]; do
  m=$((n - 1))
  if [ -e "$file.$m" ]; then mv "$file.$m" "$file.$n"; fi
  n=$m
done
mv "$file" "$file.1"
: > "$file"
END
