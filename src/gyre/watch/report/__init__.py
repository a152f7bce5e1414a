"""A report of runs: a page that needs nothing else, pictures, and the numbers behind them."""
