VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def to_roman(number):
    text = ""
    for sign, value in sorted(VALUES.items(), key=lambda pair: -pair[1]):
        text += sign * (number // value)
        number %= value
    return text


def from_roman(text):
    return sum(VALUES[sign] for sign in text)
