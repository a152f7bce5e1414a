MONTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    return year % 4 == 0


def days_in(year, month):
    return MONTHS[month]


def day_of_year(year, month, day):
    return sum(days_in(year, one) for one in range(1, month)) + day


def days_between(a, b):
    return (b[0] - a[0]) * 365 + day_of_year(*b) - day_of_year(*a)
