"""Measure the start-up time and the response time of `et demo` in a headless Chromium, and take screenshots.

python benchmarks/demo.py [--out docs/figures] [-- options of et demo]
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

SIZES = {"desktop": (1280, 1060), "phone": (390, 844)}
FOLLOW = """async ([group, part, done, count]) => {
  const slider = document.querySelector(`#et-${group} input[type=range]`);
  const times = [];
  for (let i = 0; i < count; i++) {
    const now = () => document.querySelector(part).innerHTML;
    const before = now(), start = performance.now();
    slider.value = Number(slider.min) + (i + 1) / (count + 2) * (slider.max - slider.min);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    if (done) slider.dispatchEvent(new Event("pointerup", { bubbles: true }));
    while (now() === before) await new Promise((resolve) => setTimeout(resolve, 2));
    times.push(performance.now() - start);
  }
  return times;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="folder to write demo_desktop.png, demo_phone.png and demo_photographs.png to"
    )
    parser.add_argument("rest", nargs="*", help="options of et demo, after --")
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with serving(arguments.rest) as (address, seconds), sync_playwright() as playwright:
        print(f"et demo is ready after {seconds:.1f} s")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        measure(browser, address)
        for name, size in SIZES.items() if arguments.out else ():
            photograph(browser, address, size, arguments.out / f"demo_{name}.png")
        if arguments.out:
            photograph(browser, address, (1280, 720), arguments.out / "demo_photographs.png", tab="Photographs")
        browser.close()


@contextmanager
def serving(options: list[str]) -> Iterator[tuple[str, float]]:
    """Start a demo, and yield its address and the seconds until it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.perf_counter()
    command = [sys.executable, "-m", "equivariant_transformers", "demo", "--no-browser", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "et demo ended before it was ready"
        yield f"http://127.0.0.1:{port}", time.perf_counter() - start
        process.terminate()


def opened(browser: Browser, address: str, size: tuple[int, int]) -> Page:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, has_touch=size[0] < 500)
    page.goto(address)
    page.wait_for_selector(".et-card")
    return page


def measure(browser: Browser, address: str) -> None:
    page = opened(browser, address, SIZES["desktop"])
    for what, part, done, count in (("pictures", ".et-hero", False, 40), ("curves", ".et-orbit", True, 10)):
        times = sorted(page.evaluate(FOLLOW, ["rotation", part, done, count]))
        print(f"{what} after a slider moves: median {statistics.median(times):.0f} ms, maximum {times[-1]:.0f} ms")
    page.close()


def photograph(browser: Browser, address: str, size: tuple[int, int], path: Path, tab: str = "Digits") -> None:
    """Take a screenshot of the page as it opens."""
    page = opened(browser, address, size)
    page.get_by_role("tab", name=tab).click()
    page.wait_for_timeout(1000)
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    main()
