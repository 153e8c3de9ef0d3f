"""Gradio components that both parts of the demo's page use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from equivariant_transformers.demo.poses import Pose, Slider

QUIET: Any = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
"""Options of every event."""


def html(value: str, **options: Any) -> gr.HTML:
    """Return an HTML component that is styled by this page's style sheet only."""
    return gr.HTML(value, apply_default_css=False, **options)


def sliders_of(sliders: Sequence[Slider], values: Sequence[float], *, prefix: str = "et-") -> list[gr.Slider]:
    """Return a component for each slider, at these values. Its id is `prefix` and the name of the group."""
    return [
        gr.Slider(
            minimum=round(slider.range[0], 2),
            maximum=round(slider.range[1], 2),
            value=round(value, 2),
            step=slider.step,
            label=slider.label,
            elem_id=f"{prefix}{slider.group}",
            buttons=[],
        )
        for slider, value in zip(sliders, values, strict=True)
    ]


def read_pose(sliders: Sequence[Slider], numbers: Sequence[float | None]) -> Pose:
    """Return the pose for the numbers of `sliders`, which may be missing or out of range while the user types."""
    pairs = zip(sliders, numbers, strict=True)
    return {slider.group: slider.to_theta(slider.nearest(number)) for slider, number in pairs}
