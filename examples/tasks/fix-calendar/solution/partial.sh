#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cat > calendar_days.py <<'END'
MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year, month):
    return 29 if month == 2 and is_leap(year) else MONTHS[month - 1]


def day_of_year(year, month, day):
    return sum(days_in(year, one) for one in range(1, month)) + day


def days_between(a, b):
    return (b[0] - a[0]) * 365 + day_of_year(*b) - day_of_year(*a)
END
