"""Gradio page of the demo: a digit to choose, sliders that distort it, the output of every layer, and photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from torch import Tensor

from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.demo import drawing, opening, photo_tab, uploads
from equivariant_transformers.demo.controls import QUIET, html, read_pose, sliders_of
from equivariant_transformers.demo.photographs import Uprighting
from equivariant_transformers.demo.poses import SLIDERS, possible
from equivariant_transformers.demo.scene import classifier_chart, make_orbit, make_scene
from equivariant_transformers.demo.work import Work
from equivariant_transformers.hub.classifier import Classifier

_FOLDER = Path(__file__).parent
STYLE = (_FOLDER / "style.css").read_text()
SESSIONS = 32
"""Number of open pages whose picture is kept. Beyond this number, the least recently used page is reset."""
_WAITING = 32  # maximum number of queued events
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


def build(model: Classifier, plain: Classifier | None, uprighting: Uprighting, work: Work) -> gr.Blocks:
    """Return the page for digits and photographs. `work` counts running computations.

    Args:
        model: a network with layers.
        plain: a plain network for comparison, or None.
        uprighting: a rotation layer for photographs.
        work: counter of the running computations.
    """
    page: gr.Blocks
    with gr.Blocks(title="Equivariant Transformers", analytics_enabled=False) as page:
        html(drawing.introduction(classifier_chart(model)))
        with gr.Tab("Digits", elem_id="et-tab-digits"):
            _digits(model, plain, work)
        with gr.Tab("Photographs", elem_id="et-tab-photographs", render_children=True):
            photo_tab.build(uprighting, work)
    page.queue(max_size=_WAITING)
    page._queue.pending_messages_per_session.max_size = 4 * _WAITING  # limits results that are never fetched
    return page


def _digits(model: Classifier, plain: Classifier | None, work: Work) -> None:
    """Add the components for digits to the current Gradio block."""
    samples = uploads.samples()

    @work.counted
    def show(chosen: tuple[Tensor, int | None], *numbers: float | None) -> list[str]:
        scene = make_scene(model, plain, chosen[0], possible(read_pose(SLIDERS, numbers)))
        return [drawing.hero(scene), drawing.classes(scene), drawing.layers(scene)]

    @work.counted
    def follow(chosen: tuple[Tensor, int | None], group: str, *numbers: float | None) -> str:
        digit, label = chosen
        return drawing.orbit(make_orbit(model, plain, digit, possible(read_pose(SLIDERS, numbers)), group, label=label))

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

    index, pose = opening.of_digits(model, plain, samples)
    first = (samples[index], _label(model, index))
    values = [round(slider.from_theta(pose[slider.group]), 2) for slider in SLIDERS]
    shown = show(first, *values)
    chosen = gr.State(first)
    with gr.Row(elem_id="et-page"):
        with gr.Column(elem_id="et-choose"):
            html("<h4>Draw, pick or upload a digit</h4>")
            sketch = _sketch(samples, index)
            load = gr.UploadButton("Upload", type="binary", size="sm", elem_id="et-upload")
            message = html("", elem_id="et-message")
        hero = html(shown[0], elem_id="et-hero")
        classes = html(shown[1], elem_id="et-classes")
        with gr.Column(elem_id="et-sliders"):
            sliders = sliders_of(SLIDERS, values)
            reset = gr.Button("Reset", size="sm", elem_id="et-reset")
        layers = html(shown[2], elem_id="et-layers")
        with gr.Column(elem_id="et-group"):
            group = gr.Radio(
                [(slider.label, slider.group) for slider in SLIDERS],
                value="x_shear",
                label="Curves over the range of",
            )
            html(_ASIDE)
        orbit = html(follow(first, "x_shear", *values), elem_id="et-orbit")

    raw: Any = {**QUIET, "preprocess": False}  # a slider's number may be missing while the user types
    live: Any = {"fn": show, "inputs": [chosen, *sliders], "outputs": [hero, classes, layers], **raw}
    later: Any = {"fn": follow, "inputs": [chosen, group, *sliders], "outputs": orbit, **raw}
    for slider in sliders:
        slider.input(**live)
        slider.release(**later)
    group.change(**later)
    reset.click(lambda: [slider.rest for slider in SLIDERS], None, sliders, **QUIET).then(**live).then(**later)
    for event in (
        sketch.pick(pick, None, [chosen, message], **QUIET),
        sketch.draw(draw, None, [chosen, message], **QUIET),
        load.upload(upload, load, [chosen, sketch, message], **QUIET),
    ):
        event.then(**live).then(**later)


def _label(model: Classifier, digit: int) -> int | None:
    """Return the class index of a sample, or None if the model does not have the class."""
    return model.card.classes.index(str(digit)) if str(digit) in model.card.classes else None


def _sketch(samples: Tensor, first: int) -> gr.HTML:
    buttons = "".join(
        f'<button class="et-sample" aria-label="Sample {digit}" aria-pressed="{str(digit == first).lower()}">'
        f'<img src="{drawing.data_url(sample[None])}" alt=""></button>'
        for digit, sample in enumerate(samples)
    )
    canvas = '<canvas width="224" height="224" aria-label="Draw a digit here"></canvas>'
    clear = '<button class="et-clear">Clear</button>'
    return html(
        drawing.data_url(samples[first][None]),
        html_template=f'<div class="et-sketch">{canvas}<div class="et-samples">{buttons}{clear}</div></div>',
        js_on_load=(_FOLDER / "sketch.js").read_text(),
        elem_id="et-sketch",
    )
