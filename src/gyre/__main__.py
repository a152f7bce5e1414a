"""`python -m gyre` is `gyre`."""

from gyre.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
