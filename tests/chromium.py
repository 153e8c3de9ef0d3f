"""The browser that the tests of the demo's page use."""

import importlib.util
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def path():
    """Where a Chromium is, or None if there is none or nothing to drive it with."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, NAMES)), None)
