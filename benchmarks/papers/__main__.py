"""The command ``python -m benchmarks.papers``."""

import sys

from benchmarks.papers.command import main

if __name__ == "__main__":
    sys.exit(main())
