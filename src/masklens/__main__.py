"""`python -m masklens` is the same as the `masklens` command."""

from .cli.main import main

if __name__ == "__main__":
    main()
