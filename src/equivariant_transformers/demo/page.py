"""Gradio page of the demo: a picture to choose, sliders that distort it, and the output of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from torch import Tensor

from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.demo import drawing, uploads
from equivariant_transformers.demo.poses import SLIDERS, Pose, possible
from equivariant_transformers.demo.scene import classifier_chart, make_orbit, make_scene
from equivariant_transformers.demo.work import Work
from equivariant_transformers.hub.classifier import Classifier

_FOLDER = Path(__file__).parent
STYLE = (_FOLDER / "style.css").read_text()
SESSIONS = 32
"""Number of open pages whose picture is kept. Beyond this number, the least recently used page is reset."""
_WAITING = 32  # maximum number of queued events
_FIRST = 7  # sample that the page opens with
_KINDS = "Choose a PNG, JPEG, GIF, WebP, BMP or TIFF of a digit."
_ASIDE = """<p class="et-aside">The curves transform the distorted input further by one of these. They are updated when
you release a slider. Both perspectives share one range, as in Projective MNIST: |x| + |y| is limited.</p>"""


def theme() -> gr.themes.Base:
    """Return a plain theme with system fonts."""
    return gr.themes.Default(
        primary_hue="sky",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )


def build(model: Classifier, plain: Classifier | None, work: Work) -> gr.Blocks:
    """Return the page for a network with layers and, if given, a plain network. `work` counts running computations."""
    samples = uploads.samples()

    @work.counted
    def show(chosen: tuple[Tensor, int | None], *numbers: float | None) -> list[str]:
        scene = make_scene(model, plain, chosen[0], _pose(numbers))
        return [drawing.hero(scene), drawing.classes(scene), drawing.layers(scene)]

    @work.counted
    def follow(chosen: tuple[Tensor, int | None], group: str, *numbers: float | None) -> str:
        digit, label = chosen
        return drawing.orbit(make_orbit(model, plain, digit, _pose(numbers), group, label=label))

    def pick(event: gr.EventData) -> tuple[Any, str]:
        index = int(event.index) % len(samples)
        return (samples[index], _label(model, index)), ""

    def draw(event: gr.EventData) -> tuple[Any, str]:
        try:
            return (uploads.read_drawing(event.png), None), ""
        except PictureError as error:
            return gr.skip(), drawing.note(f"The drawing cannot be used: {error}.")

    def upload(data: bytes | None) -> tuple[Any, Any, str]:
        try:
            digit = uploads.read(data or b"")
        except PictureError as error:
            return gr.skip(), gr.skip(), drawing.note(f"The file cannot be used: {error}. {_KINDS}")
        return (digit, None), drawing.data_url(digit[None]), ""

    first = (samples[_FIRST], _label(model, _FIRST))
    rest = [slider.rest for slider in SLIDERS]
    shown = show(first, *rest)
    page: gr.Blocks
    with gr.Blocks(title="Equivariant Transformers", analytics_enabled=False) as page:
        chosen = gr.State(first)
        _html(drawing.introduction(classifier_chart(model)))
        with gr.Row(elem_id="et-page"):
            with gr.Column(elem_id="et-choose"):
                _html("<h4>Draw, pick or upload a digit</h4>")
                sketch = _sketch(samples)
                load = gr.UploadButton("Upload", type="binary", size="sm", elem_id="et-upload")
                message = _html("", elem_id="et-message")
            hero = _html(shown[0], elem_id="et-hero")
            classes = _html(shown[1], elem_id="et-classes")
            with gr.Column(elem_id="et-sliders"):
                sliders = [
                    gr.Slider(
                        minimum=round(slider.range[0], 2),
                        maximum=round(slider.range[1], 2),
                        value=slider.rest,
                        step=slider.step,
                        label=slider.label,
                        elem_id=f"et-{slider.group}",
                        buttons=[],
                    )
                    for slider in SLIDERS
                ]
                reset = gr.Button("Reset", size="sm", elem_id="et-reset")
            layers = _html(shown[2], elem_id="et-layers")
            with gr.Column(elem_id="et-group"):
                group = gr.Radio(
                    [(slider.label, slider.group) for slider in SLIDERS],
                    value="x_shear",
                    label="Curves over the range of",
                )
                _html(_ASIDE)
            orbit = _html(follow(first, "x_shear", *rest), elem_id="et-orbit")

        quiet: Any = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
        raw: Any = {**quiet, "preprocess": False}  # a slider's number may be missing while the user types
        live: Any = {"fn": show, "inputs": [chosen, *sliders], "outputs": [hero, classes, layers], **raw}
        later: Any = {"fn": follow, "inputs": [chosen, group, *sliders], "outputs": orbit, **raw}
        for slider in sliders:
            slider.input(**live)
            slider.release(**later)
        group.change(**later)
        reset.click(lambda: rest, None, sliders, **quiet).then(**live).then(**later)
        for event in (
            sketch.pick(pick, None, [chosen, message], **quiet),
            sketch.draw(draw, None, [chosen, message], **quiet),
            load.upload(upload, load, [chosen, sketch, message], **quiet),
        ):
            event.then(**live).then(**later)
    page.queue(max_size=_WAITING)
    page._queue.pending_messages_per_session.max_size = 4 * _WAITING  # limits results that are never fetched
    return page


def _pose(numbers: Sequence[float | None]) -> Pose:
    pairs = zip(SLIDERS, numbers, strict=True)
    return possible({slider.group: slider.to_theta(slider.nearest(number)) for slider, number in pairs})


def _label(model: Classifier, digit: int) -> int | None:
    """Return the class index of a sample, or None if the model does not have the class."""
    return model.card.classes.index(str(digit)) if str(digit) in model.card.classes else None


def _html(value: str, **options: Any) -> gr.HTML:
    """Return an HTML component that is styled by this page's style sheet only."""
    return gr.HTML(value, apply_default_css=False, **options)


def _sketch(samples: Tensor) -> gr.HTML:
    buttons = "".join(
        f'<button class="et-sample" aria-label="Sample {digit}" aria-pressed="{str(digit == _FIRST).lower()}">'
        f'<img src="{drawing.data_url(sample[None])}" alt=""></button>'
        for digit, sample in enumerate(samples)
    )
    canvas = '<canvas width="224" height="224" aria-label="Draw a digit here"></canvas>'
    clear = '<button class="et-clear">Clear</button>'
    return _html(
        drawing.data_url(samples[_FIRST][None]),
        html_template=f'<div class="et-sketch">{canvas}<div class="et-samples">{buttons}{clear}</div></div>',
        js_on_load=(_FOLDER / "sketch.js").read_text(),
        elem_id="et-sketch",
    )
