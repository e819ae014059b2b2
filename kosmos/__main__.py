"""python -m kosmos"""

import sys

from kosmos.cli import main

if __name__ == "__main__":
    sys.exit(main())
