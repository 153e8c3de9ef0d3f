"""Part of the demo's page for photographs: before and after the layer `upright`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from equivariant_transformers.data.pictures import PictureError
from equivariant_transformers.data.projective_mnist_set import POSE_NAMES
from equivariant_transformers.demo import drawing, opening, photographs, uploads
from equivariant_transformers.demo.controls import QUIET, html, read_pose, sliders_of
from equivariant_transformers.demo.photographs import Uprighting
from equivariant_transformers.demo.poses import PHOTOGRAPH_SLIDERS
from equivariant_transformers.demo.work import Work

_KINDS = "Choose a PNG, JPEG, GIF, WebP, BMP or TIFF."
_ASIDE = """<p class="et-aside">The layer <i>upright</i> predicts the rotation from the largest circle in the picture,
at 64 x 64 pixels, and turns the picture back. It was trained on small pictures of animals, vehicles and house numbers.
It leaves a picture as it is if it does not recognise an upright pose. It does not predict the other transformations.
</p>"""


def build(uprighting: Uprighting, work: Work) -> None:
    """Add the components to the current Gradio block. `work` counts running computations."""
    samples = photographs.samples()
    index, turn = opening.of_photographs(uprighting, samples)

    @work.counted
    @torch.inference_mode()
    def show(chosen: Tensor, *numbers: float | None) -> str:
        pose = read_pose(PHOTOGRAPH_SLIDERS, numbers)
        found = uprighting(chosen[None], torch.tensor([[pose[name] for name in POSE_NAMES]]))
        return drawing.photograph(found["distorted"][0], found["canonical"][0], float(found["predicted"]))

    def pick(event: gr.EventData) -> tuple[Any, str]:
        return samples[int(event.index) % len(samples)], ""

    def snap(event: gr.EventData) -> tuple[Any, str]:
        try:
            return uploads.read_frame(event.png), ""
        except PictureError as error:
            return gr.skip(), drawing.note(f"The frame cannot be used: {error}.")

    def upload(data: bytes | None) -> tuple[Any, str]:
        try:
            return uploads.read_photograph(data or b""), ""
        except PictureError as error:
            return gr.skip(), drawing.note(f"The file cannot be used: {error}. {_KINDS}")

    values = [math.degrees(turn) if slider.group == "rotation" else slider.rest for slider in PHOTOGRAPH_SLIDERS]
    chosen = gr.State(samples[index])
    with gr.Row(elem_id="et-photographs"):
        with gr.Column(elem_id="et-photo-choose"):
            html("<h4>Pick, upload or take a picture</h4>")
            album = _album(samples, index)
            load = gr.UploadButton("Upload", type="binary", size="sm", elem_id="et-photo-upload")
            message = html("", elem_id="et-photo-message")
            html(_ASIDE)
        result = html(show(samples[index], *values), elem_id="et-photo-result")
        with gr.Column(elem_id="et-photo-sliders"):
            sliders = sliders_of(PHOTOGRAPH_SLIDERS, values, prefix="et-photo-")
            reset = gr.Button("Reset", size="sm", elem_id="et-photo-reset")
    live: Any = {"fn": show, "inputs": [chosen, *sliders], "outputs": result, **QUIET, "preprocess": False}
    for slider in sliders:
        slider.input(**live)
    reset.click(lambda: [slider.rest for slider in PHOTOGRAPH_SLIDERS], None, sliders, **QUIET).then(**live)
    for event in (
        album.pick(pick, None, [chosen, message], **QUIET),
        album.snap(snap, None, [chosen, message], **QUIET),
        load.upload(upload, load, [chosen, message], **QUIET),
    ):
        event.then(**live)


def _album(samples: Tensor, chosen: int) -> gr.HTML:
    buttons = "".join(
        f'<button class="et-sample" aria-label="{name}" aria-pressed="{str(place == chosen).lower()}">'
        f'<img src="{drawing.data_url(sample)}" alt=""></button>'
        for place, (name, sample) in enumerate(zip(photographs.NAMES, samples, strict=True))
    )
    return html(
        "",
        html_template=f'<div class="et-album"><div class="et-samples">{buttons}</div>'
        '<video muted playsinline hidden></video><button class="et-clear et-camera">Webcam</button></div>',
        js_on_load=Path(__file__).with_name("camera.js").read_text(),
        elem_id="et-album",
    )
