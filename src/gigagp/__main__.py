"""``python -m gigagp`` is the command line."""

from gigagp.commands import main

if __name__ == "__main__":
    main()
