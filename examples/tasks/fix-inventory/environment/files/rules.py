def add(stock, name, count):
    stock[name] = count


def take(stock, name, count):
    stock[name] = stock.get(name, 0) - count
