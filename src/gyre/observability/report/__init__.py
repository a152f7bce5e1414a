"""A report of runs: an HTML page, figures, and the numbers behind them."""
