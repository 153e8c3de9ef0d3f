"""The demo as a person uses it, in a headless Chromium: `et demo` in a process of its own, on two sizes of screen."""

import time

import chromium
import demo_process
import pytest
from test_uploads import BAD, GOOD

from equivariant_transformers.demo.uploads import MOST_BYTES

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
ONE_SIZE = pytest.mark.parametrize("page", ["desktop"], indirect=True)
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
SOON = 20_000  # ms, on a busy machine


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The address of a running demo."""
    with demo_process.running(tmp_path_factory.mktemp) as process:
        yield process.address


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.path(), args=["--no-sandbox", *CAMERA])
        yield browser
        browser.close()


@pytest.fixture(params=SIZES)
def page(request, demo, browser):
    """The page, loaded. Afterwards it has told of no errors and asked no other host for anything."""
    page = browser.new_page(viewport=SIZES[request.param], has_touch=request.param == "phone")
    page.set_default_timeout(SOON)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(demo)
    page.wait_for_selector(".et-card")
    yield page
    page.close()
    assert told == []
    assert [url for url in asked if not url.startswith((demo, "data:", "blob:"))] == []


class Shown:
    """Part of the page, to wait until it has changed."""

    def __init__(self, page, selector):
        self.page, self.selector = page, selector
        self.before = page.inner_html(selector)

    def changes(self):
        self.page.wait_for_function(
            "([selector, before]) => document.querySelector(selector).innerHTML !== before",
            arg=[self.selector, self.before],
        )
        return self.page.inner_html(self.selector)


def slider(page, group):
    handle = page.locator(f"#et-{group} input[type=range]")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    return box["x"], box["y"] + box["height"] / 2, box["width"]


def test_dragging_a_slider_changes_everything_at_once_and_the_orbit_afterwards(page):
    hero, layers, orbit = (Shown(page, selector) for selector in (".et-hero", ".et-layers", ".et-orbit"))
    x, y, width = slider(page, "x_shear")
    page.mouse.move(x + width / 2, y)
    page.mouse.down()
    page.mouse.move(x + 0.9 * width, y, steps=5)
    hero.changes()
    layers.changes()
    assert page.inner_html(".et-orbit") == orbit.before
    page.mouse.up()
    orbit.changes()
    assert 1.0 < float(page.input_value("#et-x_shear input[type=number]")) < 1.4
    hero = Shown(page, ".et-hero")
    page.click("#et-reset")
    hero.changes()
    assert page.input_value("#et-x_shear input[type=number]") == "0"


def test_samples_are_picked_and_digits_drawn(page):
    hero, orbit = Shown(page, ".et-hero"), Shown(page, ".et-orbit")
    page.click("[aria-label='Sample 3']")
    hero.changes()
    assert "Probability of “3”" in orbit.changes()
    page.click(".et-clear")
    hero = Shown(page, ".et-hero")
    page.locator(".et-sketch canvas").scroll_into_view_if_needed()
    box = page.locator(".et-sketch canvas").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.8 * box["height"], steps=6)
    page.mouse.up()
    hero.changes()
    assert page.locator(".et-sample[aria-pressed=true]").count() == 0


def test_uploads_are_shown_or_explained(page, tmp_path):
    chooser = "#et-choose input[type=file]"
    hero = Shown(page, ".et-hero")
    for number, (data, reason) in enumerate(BAD[name] for name in ("empty", "text", "svg", "truncated jpeg", "bomb")):
        path = tmp_path / f"picture{number}.png"
        path.write_bytes(data)
        page.set_input_files(chooser, path)
        page.locator("#et-message", has_text=reason.split("|")[0]).wait_for()
        assert page.inner_html(".et-hero") == hero.before
    path = tmp_path / "good.gif"
    path.write_bytes(GOOD["animated"])
    page.set_input_files(chooser, path)
    hero.changes()
    page.locator("#et-message .et-note").wait_for(state="detached")


@ONE_SIZE
def test_too_large_a_file_is_refused(page, tmp_path):
    hero = Shown(page, ".et-hero")
    path = tmp_path / "large.png"
    path.write_bytes(bytes(MOST_BYTES + 1))
    page.set_input_files("#et-choose input[type=file]", path)
    page.get_by_text("maximum allowed size of 10.0 M").wait_for()
    assert page.inner_html(".et-hero") == hero.before


@ONE_SIZE
def test_any_number_may_be_typed(page):
    box = page.locator("#et-x_shear input[type=number]")
    for text, shown in (("-1e9", "-1.5"), ("", "0"), ("1e9", "1.5"), ("0.3", "0.3")):
        hero, orbit = Shown(page, ".et-hero"), Shown(page, ".et-orbit")
        box.fill(text)
        hero.changes()
        box.blur()
        orbit.changes()
        assert box.input_value() == shown
    assert page.get_by_text("Error", exact=True).count() == 0


@ONE_SIZE
def test_the_orbit_of_each_slider_can_be_chosen(page):
    orbit = Shown(page, ".et-orbit")
    page.get_by_label("Rotation", exact=True).check()
    assert "No layer predicts rotation" in orbit.changes()


def test_photographs_are_picked_turned_uploaded_and_taken(page, tmp_path):
    page.get_by_role("tab", name="Photographs").click()
    page.wait_for_selector("#et-photo-result .et-round")
    result = Shown(page, "#et-photo-result .et-hero")
    page.click("[aria-label='Cat']")
    result.changes()
    result = Shown(page, "#et-photo-result .et-hero")
    page.click("#et-photo-reset")
    result.changes()
    assert page.input_value("#et-photo-rotation input[type=number]") == "0"
    result = Shown(page, "#et-photo-result .et-hero")
    page.fill("#et-photo-rotation input[type=number]", "75")
    result.changes()
    chooser = "#et-photo-choose input[type=file]"
    path = tmp_path / "picture.png"
    path.write_bytes(BAD["text"][0])
    result = Shown(page, "#et-photo-result .et-hero")
    page.set_input_files(chooser, path)
    page.locator("#et-photo-message", has_text=BAD["text"][1]).wait_for()
    assert page.inner_html("#et-photo-result .et-hero") == result.before
    path = tmp_path / "picture.jpg"
    path.write_bytes(GOOD["photograph"])
    page.set_input_files(chooser, path)
    result.changes()
    page.locator("#et-photo-message .et-note").wait_for(state="detached")
    result = Shown(page, "#et-photo-result .et-hero")
    page.click(".et-camera")
    page.get_by_text("Take the picture").wait_for()
    page.wait_for_function("document.querySelector('.et-album video').videoWidth > 0")
    page.get_by_text("Take the picture").click()
    result.changes()
    assert page.locator(".et-album [aria-pressed=true]").count() == 0
    assert page.inner_text(".et-camera") == "Webcam"
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_everything_fits_the_screen(page):
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in page.locator("#et-page > *, .et-card, .et-hero, .et-verdict").all():
        box = part.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    if width < 500:  # the result stays in sight while one drags
        slider(page, "y_perspective")
        page.mouse.wheel(0, 500)
        time.sleep(0.3)
        assert 0 <= page.locator("#et-hero").bounding_box()["y"] < 40
