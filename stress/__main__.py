"""The command ``python -m stress``."""

import sys

from stress.command import main

if __name__ == "__main__":
    sys.exit(main())
