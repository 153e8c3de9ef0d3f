"""`python -m equivariant_transformers`, the same as the command `et`."""

import sys

from equivariant_transformers.cli import main

if __name__ == "__main__":
    sys.exit(main())
