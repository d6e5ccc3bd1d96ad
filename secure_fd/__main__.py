"""`python -m secure_fd` is the command `secure-fd`."""

import sys

from secure_fd.cli import main

if __name__ == "__main__":
    sys.exit(main())
