"""HTML of scenes and orbits: pictures are inline PNGs, curves are SVG, colours come from the style sheet."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape

from torch import Tensor

from equivariant_transformers.data.pictures import to_picture
from equivariant_transformers.demo.poses import SLIDERS
from equivariant_transformers.demo.scene import Axis, LayerView, Orbit, Scene
from equivariant_transformers.geometry.charts import Chart

_WIDTH, _HEIGHT = 430, 190  # size of a plot in SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 26  # margins of a plot


def introduction(view: Chart | None) -> str:
    """Return the introduction of the page. `view` is the chart of the classifier's input."""
    text = (
        "Drag a slider. Each layer samples the picture in coordinates in which its transformation is a translation. It "
        'predicts the translation, shown by the <i class="et-key"></i> marker, and removes it. The canonical result is '
        "the input of the classifier"
    )
    if view is not None:
        shifts = " and ".join(words(group.name).lower() for group in view.groups)
        text += f", in {words(view.name).lower()} coordinates, in which {shifts} are translations as well"
    return f'<header class="et-title"><h1>Equivariant Transformers</h1><p>{text}.</p></header>'


def data_url(image: Tensor) -> str:
    """Return an image `(C, H, W)` of bytes as the data URL of a PNG."""
    file = io.BytesIO()
    to_picture(image).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def words(group: str) -> str:
    """Return the label of a group or chart."""
    return next((slider.label for slider in SLIDERS if slider.group == group), group.replace("_", " ").capitalize())


def hero(scene: Scene) -> str:
    """Return the distorted and the canonical picture, and the prediction of each network."""
    verdicts = _verdict("with ET layers", scene.classes, scene.shares, "et-with")
    if scene.plain_shares:
        verdicts += _verdict("plain network", scene.classes, scene.plain_shares, "et-plain")
    return (
        f'<div class="et-hero">{_figure(scene.distorted, "Distorted input")}'
        f'<span class="et-arrow" aria-hidden="true"></span>{_figure(scene.canonical, "Canonical result")}'
        f'<div class="et-verdicts">{verdicts}</div></div>'
    )


def photograph(distorted: Tensor, canonical: Tensor, rotation: float) -> str:
    """Return a photograph before and after the layer `upright`, and the `rotation` that it predicts, in radians."""
    return (
        f'<div class="et-hero et-round">{_figure(distorted, "Before")}'
        f'<span class="et-arrow" aria-hidden="true"></span>{_figure(canonical, "After")}'
        f'<p class="et-verdict et-with"><strong>{math.degrees(rotation):+.0f}°</strong>'
        "<small>predicted<br>rotation</small></p></div>"
    )


def classes(scene: Scene) -> str:
    """Return bar charts of the class probabilities, with and without layers."""
    parts = [_bars("With ET layers", scene.classes, scene.shares, "et-with")]
    if scene.plain_shares:
        parts.append(_bars("Plain network", scene.classes, scene.plain_shares, "et-plain"))
    return f'<div class="et-classes">{"".join(parts)}</div>'


def layers(scene: Scene) -> str:
    """Return a card per layer: the picture in its chart, the heat map along the pose axis, the pose, and its output."""
    cards = "".join(_card(number, layer) for number, layer in enumerate(scene.layers, 1))
    return f'<div class="et-layers" style="--et-count:{min(4, len(scene.layers))}">{cards}</div>'


def orbit(found: Orbit) -> str:
    """Return plots of the class probability over the orbit, and of the predicted pose if a layer predicts it."""
    slider = next(slider for slider in SLIDERS if slider.group == found.group)
    values = [slider.from_theta(theta) for theta in found.thetas]
    here = slider.from_theta(found.here)
    lines = [("et-with", found.shares)]
    caption = f"Probability of “{escape(found.name)}”: <b class=et-with>with ET layers</b>"
    if found.plain_shares:
        lines.append(("et-plain", found.plain_shares))
        caption += ", <b class=et-plain>plain network</b>"
    plots = _plot(caption, values, here, lines, (0.0, 1.0), per_cent=True)
    if found.predicted is None:
        text = f"No layer predicts {slider.label.lower()}."
        if found.shifts_in:
            text += f" It is a translation in the classifier's {words(found.shifts_in).lower()} coordinates."
        return f'<div class="et-orbit">{plots}<p class="et-aside">{text}</p></div>'
    predicted = [slider.from_theta(theta) for theta in found.predicted]
    bounds = (min(*values, *predicted), max(*values, *predicted))
    caption = f"{slider.label} <b class=et-with>predicted</b>, relative to the current value; dotted: true"
    plots += _plot(caption, values, here, [("et-ideal", values), ("et-with", predicted)], bounds)
    return f'<div class="et-orbit">{plots}</div>'


def note(text: str) -> str:
    """Return a message about the chosen picture; empty if `text` is empty."""
    return f'<p class="et-note" role="alert">{escape(text)}</p>' if text else ""


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return round numbers from `low` to `high` and their labels, at steps of 1, 2 or 5 times a power of ten.

    >>> [label for _, label in ticks(-1.4998, 1.5003)], [label for _, label in ticks(-180, 180)]
    (['-1', '0', '1'], ['-100', '0', '100'])
    """
    if not high > low:
        return [(low, f"{low:.2g}")]
    power = math.floor(math.log10((high - low) / 2))
    step = max(factor * 10.0**power for factor in (1, 2, 5) if 2 * factor * 10.0**power <= high - low)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [(step * place, f"{step * place:.{max(0, -power)}f}") for place in range(first, last + 1)]


def _figure(image: Tensor, caption: str) -> str:
    picture = f'<img class="et-picture" src="{data_url(image)}" alt="{caption}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _best(shares: Sequence[float]) -> int:
    return max(range(len(shares)), key=shares.__getitem__)


def _verdict(who: str, names: Sequence[str], shares: Sequence[float], style: str) -> str:
    best = _best(shares)
    return (
        f'<p class="et-verdict {style}"><strong>{escape(names[best])}</strong>'
        f"<span>{shares[best]:.0%}<br><small>{who}</small></span></p>"
    )


def _bars(title: str, names: Sequence[str], shares: Sequence[float], style: str) -> str:
    best = _best(shares)
    bars = "".join(
        f'<li{" class=et-best" if place == best else ""} title="{escape(name)}: {share:.1%}">'
        f'<i style="height:{100 * share:.1f}%"></i><b>{escape(name)}</b></li>'
        for place, (name, share) in enumerate(zip(names, shares, strict=True))
    )
    return f'<section class="{style}"><h4>{title}</h4><ul class="et-bars">{bars}</ul></section>'


def _card(number: int, layer: LayerView) -> str:
    title = ", ".join(words(group) for group in layer.groups)
    poses = "".join(f"<dd>{axis.pose:+.2f}</dd>" for axis in layer.axes)
    markers = "".join(_marker(axis, across=place == 0) for place, axis in enumerate(layer.axes))
    maps = "".join(_heat(axis, across=place == 0) for place, axis in enumerate(layer.axes))
    return (
        f'<article class="et-card"><h4><span>{number}</span>{title}</h4>'
        f'<div class="et-chart"><div class="et-seen"><img src="{data_url(_parted(layer))}" '
        f'alt="The picture in the coordinates of {title}">{markers}</div>{maps}</div>'
        f'<div class="et-after"><img class="et-picture" src="{data_url(layer.image)}" alt="After {title} is removed">'
        f"<dl><dt>pose</dt>{poses}</dl></div></article>"
    )


def _parted(layer: LayerView) -> Tensor:
    """Return the picture in the chart with a grey line between its sheets, enlarged so that the line is thin."""
    large = layer.seen.repeat_interleave(4, 1).repeat_interleave(4, 2)
    large[:, large.shape[1] // layer.sheets :: large.shape[1] // layer.sheets] = 110
    return large


def _marker(axis: Axis, *, across: bool) -> str:
    side = "left" if across else "top"
    return (
        f'<i class="et-zero et-{side}" style="{side}:{100 * axis.zero:.1f}%"></i>'
        f'<i class="et-marker et-{side}" style="{side}:{100 * axis.marker:.1f}%"></i>'
    )


def _heat(axis: Axis, *, across: bool) -> str:
    """Return the heat map as an area plot. Its axis runs to the right if `across`, else down."""
    top = max(axis.weights) or 1.0
    heights = [28 * weight / top for weight in axis.weights]
    corners = [(0.0, 0.0), *zip([100 * place for place in axis.positions], heights, strict=True)]
    corners.append((corners[-1][0], 0.0))
    points = " ".join(f"{x:.1f},{30 - y:.1f}" if across else f"{y:.1f},{x:.1f}" for x, y in corners)
    box, side = ("0 0 100 30", "across") if across else ("0 0 30 100", "down")
    pose = f"heat map of {words(axis.group)}"
    return (
        f'<div class="et-heat et-{side}"><svg viewBox="{box}" preserveAspectRatio="none" role="img" '
        f'aria-label="{pose}"><polygon points="{points}"/></svg>{_marker(axis, across=across)}</div>'
    )


def _plot(
    caption: str,
    values: Sequence[float],
    here: float,
    lines: Sequence[tuple[str, Sequence[float]]],
    bounds: tuple[float, float],
    *,
    per_cent: bool = False,
) -> str:
    """Return a plot of curves (style class, heights) over `values`, with a vertical line at `here`."""
    low, high = min(values), max(values)
    bottom, top = bounds

    def across(value: float) -> float:
        return _LEFT + (value - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return _TOP + (top - value) / ((top - bottom) or 1) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for value, label in ticks(100 * bottom, 100 * top) if per_cent else ticks(bottom, top):
        y = down(value / 100 if per_cent else value)
        parts.append(f'<line class="et-tick" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        unit = "%" if per_cent else ""
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}{unit}</text>')
    for value, label in ticks(low, high):
        parts.append(f'<text x="{across(value):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>')
    x = across(here)
    parts.append(f'<line class="et-here" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    for style, heights in lines:
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in zip(values, heights, strict=True))
        parts.append(f'<polyline class="{style}" points="{points}"/>')
    return (
        f'<figure class="et-plot"><figcaption>{caption}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg></figure>'
    )
