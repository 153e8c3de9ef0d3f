"""The examples run and draw what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "pictures"),
    [("first_look.py", ["coordinates.png", "groups.png"]), ("pose_plot.py", ["pose_plot.png"])],
)
def test_examples_draw(script, pictures, tmp_path):
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, EXAMPLES / script, "--out", tmp_path], check=True, capture_output=True)
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 10_000
