import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for what the tests of the page take from those of the demo
