"""Limits on networks that are built by name or from a file.

The limits are far above normal use. They keep a damaged or malicious model file or config from using all memory or
running for hours.
"""

MOST_CHANNELS = 1024
"""Maximum number of channels of an image."""
MOST_SIDE = 1024
"""Maximum height and width of an image in pixels."""
MOST_CLASSES = 100_000
"""Maximum number of classes of a data set or a classifier."""
MOST_LAYERS = 32
"""Maximum number of transformer layers of a network, and of groups in its augmentation."""
MOST_ITERATIONS = 32
"""Maximum number of times the layers are run on their own result."""
MOST_TTA = 256
"""Maximum number of predictions per image that test-time augmentation averages over."""
