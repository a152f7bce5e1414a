#!/bin/bash
set -euo pipefail
cat > calendar_days.py <<'END'
MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year, month):
    if not 1 <= month <= 12:
        raise ValueError(month)
    return 29 if month == 2 and is_leap(year) else MONTHS[month - 1]


def day_of_year(year, month, day):
    if not 1 <= day <= days_in(year, month):
        raise ValueError(day)
    return sum(days_in(year, one) for one in range(1, month)) + day


def _days(date):
    year = date[0] - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year(*date)


def days_between(a, b):
    return _days(b) - _days(a)
END
