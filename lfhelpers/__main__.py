"""`python -m lfhelpers` is the command `lfhelpers`."""

from lfhelpers.cli import main

if __name__ == "__main__":
    main()
