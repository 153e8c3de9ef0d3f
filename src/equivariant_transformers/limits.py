"""The largest networks that are built by name or from a file.

The limits are far above what the library is used for. They keep a damaged or malicious model file or config from taking
all memory or running for hours.
"""

MOST_CHANNELS = 1024
"""Channels of an image."""
MOST_SIDE = 1024
"""Pixels of an image, across and down."""
MOST_CLASSES = 100_000
"""Classes of a data set or a classifier."""
MOST_LAYERS = 32
"""Transformer layers of a network, and groups that move its training images."""
MOST_ITERATIONS = 32
"""Runs of the layers on their own result."""
MOST_TTA = 256
"""Views of an image that an answer is averaged over."""
