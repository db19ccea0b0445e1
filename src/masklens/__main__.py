"""`python -m masklens` is the same as the `masklens` command."""

from .cli import main

if __name__ == "__main__":
    main()
