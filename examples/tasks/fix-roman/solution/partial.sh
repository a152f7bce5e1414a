#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > roman.py <<'END'
SIGNS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
VALUES = {sign: value for value, sign in SIGNS}


def to_roman(number):
    text = ""
    for value, sign in SIGNS:
        text += sign * (number // value)
        number %= value
    return text


def from_roman(text):
    return sum(VALUES[sign] for sign in text)
END
