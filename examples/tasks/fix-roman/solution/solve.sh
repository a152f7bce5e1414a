#!/bin/bash
set -euo pipefail
cat > roman.py <<'END'
SIGNS = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
         (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]


def to_roman(number):
    if not 1 <= number <= 3999:
        raise ValueError(number)
    text = ""
    for value, sign in SIGNS:
        text += sign * (number // value)
        number %= value
    return text


def from_roman(text):
    total, rest = 0, text
    for value, sign in SIGNS:
        while rest.startswith(sign):
            total += value
            rest = rest[len(sign):]
    if rest or not text or to_roman(total) != text:
        raise ValueError(text)
    return total
END
