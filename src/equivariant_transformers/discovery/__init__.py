"""Search for the one-parameter group that moves a data set."""

from equivariant_transformers.discovery.result import Discovery, Found, commute, cosine
from equivariant_transformers.discovery.search import discover

__all__ = ["Discovery", "Found", "commute", "cosine", "discover"]
