#!/bin/bash
set -euo pipefail
cat > calc.py <<'END'
import re
import sys


class Wrong(Exception):
    pass


def tokens(text):
    found, place = [], 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        match = re.compile(r"\d+(?:\.\d+)?|[-+*/^()]").match(text, place)
        if not match:
            raise Wrong
        found.append(match[0])
        place = match.end()
    return found


class Reader:
    def __init__(self, found):
        self.rest = found

    def next(self):
        return self.rest[0] if self.rest else ""

    def take(self):
        if not self.rest:
            raise Wrong
        return self.rest.pop(0)

    def sum(self):
        value = self.product()
        while self.next() in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self):
        value = self.unary()
        while self.next() in ("*", "/"):
            value = value * self.unary() if self.take() == "*" else value / self.unary()
        return value

    def unary(self):
        if self.next() == "-":
            self.take()
            return -self.unary()
        return self.power()

    def power(self):
        value = self.atom()
        if self.next() == "^":
            self.take()
            return value ** self.unary()
        return value

    def atom(self):
        sign = self.take()
        if sign == "(":
            value = self.sum()
            if self.take() != ")":
                raise Wrong
            return value
        if not sign[0].isdigit():
            raise Wrong
        return float(sign)


try:
    reader = Reader(tokens(" ".join(sys.argv[1:])))
    value = reader.sum()
    if reader.rest:
        raise Wrong
    print(int(value) if value == int(value) else value)
except ZeroDivisionError:
    print("error: division by zero")
    sys.exit(1)
except Wrong:
    print("error: syntax")
    sys.exit(2)
END
