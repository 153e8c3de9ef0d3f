"""The live page of the documentation, as a person uses it in a headless Chromium: from a server and from a disk."""

import base64
import importlib.util
import io
import math
import os
import subprocess
import sys
from pathlib import Path

import chromium
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from servers import files, serve
from test_uploads import BAD

from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.demo import opening, photographs, uploads, web
from equivariant_transformers.demo.poses import SLIDERS

pytest.importorskip("mkdocs")
pytest.importorskip("onnxscript")
browser_only = [pytest.mark.browser, pytest.mark.xdist_group("live")]

ROOT = Path(__file__).parent.parent
SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
SOON = 60_000  # ms, on a busy machine
LISTEN = """document.addEventListener("et-result", (event) => {
  const outputs = Object.entries(event.detail.outputs).map(([name, values]) => [name, Array.from(values)]);
  globalThis.count = (globalThis.count ?? 0) + 1;
  globalThis.result = { mode: event.detail.mode, source: Array.from(event.detail.source),
    pose: Array.from(event.detail.pose), outputs: Object.fromEntries(outputs) };
});"""
FAKE_CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


def hook():
    spec = importlib.util.spec_from_file_location("mkdocs_live", ROOT / "mkdocs_live.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    start = (folder / "live" / "runtime.js").read_text()[:400]
    if '"missing"' in start:
        pytest.skip(start)
    return folder


@pytest.fixture(scope="module")
def address(site):
    with serve(files(site, [])) as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.path(), args=["--no-sandbox", *FAKE_CAMERA])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def networks():
    return {"digits": web.digit_networks(), "photographs": photographs.uprighting()}


class Live:
    """The page. `result` is what it computed last."""

    def __init__(self, page):
        self.page = page
        self.told, self.asked = [], []
        page.set_default_timeout(SOON)
        page.on("console", lambda message: self.told.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.told.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        page.add_init_script(LISTEN)

    def open(self, address):
        self.page.goto(address)
        self.page.wait_for_function("globalThis.result")
        return self

    def after(self, act):
        """What the page computes because of `act`."""
        before = self.page.evaluate("globalThis.count")
        act()
        self.page.wait_for_function("before => globalThis.count > before", arg=before)
        self.page.wait_for_timeout(300)  # it may compute again
        return self.result

    @property
    def result(self):
        return self.page.evaluate("globalThis.result")

    def photographs(self):
        return self.after(lambda: self.page.check("[value=photographs]"))

    def slider(self, group):
        return float(self.page.input_value(f"#et-live input[name={group}]"))

    def part(self, name):
        found = self.page.locator(f"[data-part={name}]")
        found.scroll_into_view_if_needed()
        return found, found.bounding_box()

    def close(self, address):
        assert self.told == []
        assert [url for url in self.asked if not url.startswith((address, "data:", "blob:"))] == []
        self.page.close()


@pytest.fixture(params=["desktop"])
def live(request, browser, address):
    page = Live(browser.new_page(viewport=SIZES[request.param], has_touch=request.param == "phone"))
    yield page.open(address + "live.html")
    page.close(address)


EVERY_SIZE = pytest.mark.parametrize("live", SIZES, indirect=True)


@torch.no_grad()
def assert_same_as_torch(result, networks):
    mode = result["mode"]
    side, channels = (28, 1) if mode == "digits" else (photographs.SIDE, 3)
    source = torch.tensor(result["source"], dtype=torch.uint8).reshape(1, channels, side, side)
    expected = networks[mode](source, torch.tensor([result["pose"]]))
    assert result["outputs"].keys() == expected.keys()
    for name, there in expected.items():
        here = torch.tensor(result["outputs"][name], dtype=torch.float64).reshape(there.shape)
        error = (here - there.double()).abs()
        if there.is_floating_point():
            assert error.max() < 2e-3, name
        else:  # rounding to a byte can differ, at the edge of the picture by more
            assert error.mean() < 0.05, name
            assert (error > 2).double().mean() < 1e-3, name


class TestPage:
    pytestmark = browser_only

    @pytest.mark.parametrize("place", ["server", "disk"])
    def test_it_opens_where_the_plain_network_fails(self, browser, address, site, networks, place):
        home = address if place == "server" else f"file://{site}/"
        page = Live(browser.new_page()).open(f"{home}live.html")
        result = page.result
        assert_same_as_torch(result, networks)
        digit, pose = opening.of_digits(networks["digits"].model, networks["digits"].plain, uploads.samples())
        assert torch.equal(torch.tensor(result["source"]), uploads.samples()[digit].flatten().long())
        assert result["pose"] == pytest.approx([pose[name] for name in POSE_NAMES], abs=0.01)
        assert np.argmax(result["outputs"]["shares"]) == digit != np.argmax(result["outputs"]["plain_shares"])
        assert page.page.inner_text("[data-part=with] output").startswith(f"{digit}, ")
        result = page.photographs()
        assert_same_as_torch(result, networks)
        turned, back = result["pose"][POSE_NAMES.index("rotation")], result["outputs"]["predicted"][0]
        assert abs(turned) >= math.pi / 2 - 0.01
        assert math.remainder(back - turned, 2 * math.pi) == pytest.approx(0, abs=math.radians(10))
        page.close(home)

    @EVERY_SIZE
    def test_a_drawing_is_the_digit_of_the_library(self, live, networks):
        live.after(lambda: live.page.click("[data-part=reset]"))
        _, box = live.part("paper")

        def draw():
            live.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.25 * box["height"])
            live.page.mouse.down()
            for x, y in ((0.7, 0.25), (0.45, 0.8)):
                live.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=5)
            live.page.mouse.up()

        result = live.after(draw)
        url = live.page.evaluate("document.querySelector('[data-part=paper]').toDataURL('image/png')")
        expected = uploads.read_drawing(url).flatten()
        assert (torch.tensor(result["source"]) - expected.long()).abs().max() <= 2
        assert_same_as_torch(result, networks)
        assert np.argmax(result["outputs"]["shares"]) == 7
        assert live.page.locator("[data-part=samples] [aria-pressed=true]").count() == 0

    @EVERY_SIZE
    def test_dragging_turns_the_picture_with_the_pointer(self, live, networks):
        live.photographs()
        upright = live.after(lambda: live.page.click("[data-part=reset]"))
        _, box = live.part("input")
        centre = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

        def drag():  # clockwise by a quarter turn, from the right to the bottom
            for degrees in range(0, 91, 5):
                x, y = (0.4 * box["width"] * part(math.radians(degrees)) for part in (math.cos, math.sin))
                live.page.mouse.move(centre[0] + x, centre[1] + y)
                if degrees == 0:
                    live.page.mouse.down()
            live.page.mouse.up()

        result = live.after(drag)
        assert live.slider("rotation") == pytest.approx(-90, abs=2)
        assert_same_as_torch(result, networks)
        pictures = [np.reshape(each["outputs"]["distorted"], (3, 192, 192)) for each in (upright, result)]
        clockwise = np.rot90(pictures[0], -1, (1, 2))
        assert np.abs(pictures[1] - clockwise).mean() < 6 < np.abs(pictures[1] - np.rot90(clockwise, 2, (1, 2))).mean()

    def test_an_upload_is_the_photograph_of_the_library(self, live, networks, tmp_path):
        live.photographs()
        strip = photographs.samples()
        picture = Image.fromarray(torch.cat((strip[1], strip[2]), 2).permute(1, 2, 0).numpy()).resize((500, 260))
        picture.save(tmp_path / "picture.png")
        result = live.after(lambda: live.page.set_input_files("[data-part=upload]", tmp_path / "picture.png"))
        expected = uploads.read_photograph((tmp_path / "picture.png").read_bytes()).flatten()
        assert (torch.tensor(result["source"]) - expected.long()).abs().max() <= 1
        assert_same_as_torch(result, networks)

    def test_uploads_are_digits_or_explained(self, live, networks, tmp_path):
        paper = Image.new("L", (300, 200), 240)
        ImageDraw.Draw(paper).line([(100, 40), (180, 40), (130, 170)], fill=20, width=14)
        paper.save(tmp_path / "seven.png")
        result = live.after(lambda: live.page.set_input_files("[data-part=upload]", tmp_path / "seven.png"))
        expected = uploads.read((tmp_path / "seven.png").read_bytes()).flatten()
        assert (torch.tensor(result["source"]) - expected.long()).abs().max() <= 2
        assert_same_as_torch(result, networks)
        for name, reason in (("text", "not a picture"), ("truncated png", ""), ("one colour", "too little contrast")):
            path = tmp_path / f"{name}.png"
            path.write_bytes(BAD[name][0])
            live.page.set_input_files("[data-part=upload]", path)
            live.page.locator("[data-part=message]", has_text=f"{name}.png cannot be used").wait_for()
            assert reason in live.page.inner_text("[data-part=message]")
        assert live.result["source"] == result["source"]
        live.after(lambda: live.page.click("[aria-label='Sample 4']"))
        assert live.page.inner_text("[data-part=message]") == ""

    def test_keys_move_everything(self, live, networks):
        live.after(lambda: live.page.click("[data-part=reset]"))
        live.page.focus("[data-part=input]")
        result = live.after(lambda: live.page.keyboard.press("ArrowRight"))
        assert live.slider("rotation") == -5
        live.page.focus("#et-live input[name=x_shear]")
        result = live.after(lambda: live.page.keyboard.press("ArrowRight"))
        assert live.slider("x_shear") == 0.01
        assert_same_as_torch(result, networks)
        live.page.focus("[value=digits]")
        live.after(lambda: live.page.keyboard.press("ArrowRight"))
        assert live.result["mode"] == "photographs"

    def test_sliders_reach_the_ends_of_projective_mnist(self, live, networks):
        for slider in SLIDERS:
            for key, value in (("End", slider.range[1]), ("Home", slider.range[0])):
                live.page.focus(f"#et-live input[name={slider.group}]")
                result = live.after(lambda key=key: live.page.keyboard.press(key))
                assert live.slider(slider.group) == pytest.approx(value, abs=slider.step)
                pose = dict(zip(POSE_NAMES, result["pose"], strict=True))
                assert abs(pose["x_perspective"]) + abs(pose["y_perspective"]) <= 1.8 + 1e-5
        assert_same_as_torch(result, networks)

    def test_a_camera_is_followed(self, live, networks):
        live.photographs()
        before = live.result["source"]
        live.page.click("[data-part=camera]")
        live.page.wait_for_function(
            "before => globalThis.count > before + 5", arg=live.page.evaluate("globalThis.count")
        )
        assert live.result["source"] != before
        assert_same_as_torch(live.result, networks)
        live.page.click("[data-part=camera]")
        live.page.wait_for_timeout(300)
        stopped = live.page.evaluate("globalThis.count")
        live.page.wait_for_timeout(300)
        assert live.page.evaluate("globalThis.count") == stopped

    @EVERY_SIZE
    def test_it_fits_the_screen(self, live):
        for mode in ("digits", "photographs"):
            if mode == "photographs":
                live.photographs()
            width = live.page.viewport_size["width"]
            assert live.page.evaluate("document.documentElement.scrollWidth") <= width
            for shown in live.page.locator("#et-live section, #et-live canvas, #et-live li, #et-live dd").all():
                box = shown.bounding_box()
                if box:
                    assert box["x"] >= 0
                    assert box["x"] + box["width"] <= width

    def test_a_build_without_the_runtime_says_so(self, browser, address):
        script = hook().packed("missing", hook().MISSING.format(reason="npm is not installed"))
        page = browser.new_page()
        page.route("**/live/runtime.js", lambda route: route.fulfill(body=script, content_type="text/javascript"))
        page.goto(address + "live.html")
        page.get_by_text("npm is not installed").wait_for()
        assert not page.is_visible("[data-part=page]")
        page.close()


def test_the_site_is_built_without_what_cannot_be_had(monkeypatch, caplog):
    caplog.set_level("INFO")
    built = hook()

    def fail():
        raise RuntimeError("ONNX Runtime Web could not be fetched:\n- npm is not installed.\nPut it into /home/me")

    monkeypatch.setattr(built, "runtime", fail)
    scripts = built.scripts()
    assert scripts.keys() == {"runtime.js", "networks.js"}
    assert "of the site: ONNX Runtime Web could not be fetched. The log" in scripts["runtime.js"]
    assert "/home/me" not in scripts["runtime.js"]
    assert "/home/me" in caplog.text


def test_photographs_are_the_centre_of_pictures():
    picture = Image.new("RGB", (400, 200), "red")
    picture.paste("blue", (100, 0, 300, 200))
    file = io.BytesIO()
    picture.save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    for found in (uploads.read_photograph(file.getvalue()), uploads.read_frame(url)):
        assert found.shape == (3, photographs.SIDE, photographs.SIDE)
        assert found.flatten(1).unique(dim=1).tolist() == [[0], [0], [255]]
