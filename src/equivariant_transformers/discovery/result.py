"""Result of a search for groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from equivariant_transformers.geometry.groups import GROUPS, Group

_EXPLAINED, _RATIO = 0.4, 0.1  # thresholds with labels; images at rest stay on the other side of both
_VISIBLE = 0.5  # threshold of the ratio without labels
_AGREEMENT = 0.9  # threshold; two random 3x3 generators agree more closely in one case of a thousand
_COMMUTE = 0.1  # size of the bracket relative to the product of the sizes of the fields
_SAMPLES = 33
_ROUNDINGS, _SIMILAR = (1, 2, 4, 10), 0.99  # parts of the largest entry of a generator
_DISTINCT = 1e-3  # eigenvalues of rounded generators are equal up to rounding, or further apart


@dataclass(frozen=True)
class Found:
    """One group, and how well the data set supports it."""

    group: Group
    theta: tuple[float, float] | None
    """Range of theta over the data set, without the outer 2 %, relative to the median of each class; None without
    labels."""
    explained: float | None
    """Share of the variance within the classes that the group explains, on blurred images; None without labels."""
    ratio: float
    """Change of the distribution of the images along the group, relative to that along the next direction; without
    labels, visibility of a motion along the group, relative to that along the next direction."""
    agreement: float
    """Cosine, up to sign, between the directions found from two halves of the images independently."""

    @property
    def confidence(self) -> float:
        """Number from 0 to 1; a group is reported from 0.5 on.

        The data set has to move along the group, as shown by `explained` or by `ratio`, and the halves have to agree.
        """
        if self.explained is None:
            by_motion = 1 - self.ratio / (2 * _VISIBLE)
        else:
            by_motion = max(self.explained / (2 * _EXPLAINED), 1 - self.ratio / (2 * _RATIO))
        by_agreement = 1 - (1 - self.agreement) / (2 * (1 - _AGREEMENT))
        return min(1.0, max(0.0, min(by_motion, by_agreement)))

    @property
    def significant(self) -> bool:
        """Return whether the group explains more than the variety of images at rest, and both halves give it."""
        return self.confidence >= 0.5

    @property
    def simplified(self) -> Group:
        """Group of a rounded generator whose vector field has a cosine of 0.99 with the group found.

        The coarsest such rounding decides the kind of group, and the nearest rounding of this kind is returned. A group
        without a generator, or one that no rounding describes, is returned unchanged. A layer needs the rounded group:
        next to a rotation, the exact one is a spiral of many turns, and its chart has few samples per turn.
        """
        if self.group.generator is None:
            return self.group
        exact = torch.tensor(self.group.generator, dtype=torch.float64)
        nearest, similar, kind = self.group, 0.0, None
        for parts in _ROUNDINGS:
            rounded = (exact / exact.abs().max() * parts).round() / parts
            if torch.equal(rounded, rounded[0, 0] * torch.eye(3)):
                continue
            group = Group.from_generator(rounded, name=self.group.name)
            closeness = cosine(group, self.group)
            if closeness >= _SIMILAR and closeness > similar and kind in (None, _kind(rounded)):
                nearest, similar, kind = group, closeness, _kind(rounded)
        return nearest

    @property
    def nearest(self) -> tuple[str, float]:
        """Name of the nearest of the paper's groups, and the cosine between the vector fields."""
        cosines = {name: abs(cosine(self.group, known)) for name, known in GROUPS.items()}
        name = max(cosines, key=lambda name: cosines[name])
        return name, cosines[name]


@dataclass(frozen=True)
class Discovery:
    """Groups that move a data set, in the order in which they were found."""

    found: tuple[Found, ...]
    rejected: Found | None
    """Best candidate of the last search if it is not significant."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups that were found."""
        return tuple(entry.group for entry in self.found)

    @property
    def group(self) -> Group | None:
        """First group, or None if nothing was found."""
        return self.found[0].group if self.found else None

    @property
    def theta(self) -> tuple[float, float] | None:
        """Range of theta of the first group; None without labels."""
        return self.found[0].theta if self.found else None

    @property
    def confidence(self) -> float:
        """Confidence in the first group, or in the rejected candidate if nothing was found."""
        entry = self.found[0] if self.found else self.rejected
        return entry.confidence if entry else 0.0

    @property
    def commute(self) -> bool:
        """Return whether the groups commute. Groups that do not commute need one layer each and share no chart."""
        return all(commute(a, b) for number, a in enumerate(self.groups) for b in self.groups[:number])

    def __str__(self) -> str:
        if not self.found:
            return f"nothing found; {self._rejected()}"
        lines = []
        for entry in self.found:
            name, similar = entry.nearest
            reach = f"theta from {entry.theta[0]:.2f} to {entry.theta[1]:.2f}, " if entry.theta else ""
            lines.append(
                f"{entry.group.name}: {reach}confidence {entry.confidence:.2f}, nearest known group {name} "
                f"(cosine {similar:.3f})"
            )
        if self.rejected:
            lines.append(f"no further group; {self._rejected()}")
        if not self.commute:
            lines.append("the groups do not commute: use one layer after the other, in the reverse order")
        return "\n".join(lines)

    def _rejected(self) -> str:
        entry = self.rejected
        assert entry is not None
        if entry.explained is None:
            reason = f"a motion along it is {entry.ratio:.2f} times as visible as the next direction"
        else:
            reason = f"explains {entry.explained:.0%} of the variance within the classes"
        return (
            f"best candidate: {reason}, halves agree with a cosine of {entry.agreement:.2f}; "
            f"confidence {entry.confidence:.2f}, 0.5 needed"
        )


def cosine(a: Group, b: Group) -> float:
    """Return the cosine between the vector fields of two groups over a square image.

    >>> round(cosine(GROUPS["x_shear"], GROUPS["rotation"]), 3)
    0.707
    """
    first, second = (group.vector_field(_points()) for group in (a, b))
    return float((first * second).sum() / (first.norm() * second.norm()))


def commute(a: Group, b: Group) -> bool:
    """Return whether two groups commute, up to the accuracy of a discovery.

    >>> commute(GROUPS["rotation"], GROUPS["dilation"]), commute(GROUPS["rotation"], GROUPS["x_shear"])
    (True, False)
    """
    points = _points()
    first, second = a.vector_field(points), b.vector_field(points)
    bracket = (
        torch.func.jvp(b.vector_field, (points,), (first,))[1] - torch.func.jvp(a.vector_field, (points,), (second,))[1]
    )
    return bool(bracket.norm() * _SAMPLES < _COMMUTE * first.norm() * second.norm())


def _kind(generator: torch.Tensor) -> tuple[object, ...]:
    """Return whether eigenvalues are complex, which real parts differ, and the dimension of the span of the powers.

    The orbits of two generators that agree in this have the same shape, as for rotations about two points.
    """
    eigenvalues = torch.linalg.eigvals(generator)
    distinct = eigenvalues.real.sort().values.diff() > _DISTINCT
    powers = torch.stack([torch.eye(3).to(generator), generator, generator @ generator]).flatten(1)
    turns = bool((eigenvalues.imag.abs() > _DISTINCT).any())
    return turns, *distinct.tolist(), int(torch.linalg.matrix_rank(powers))


def _points() -> torch.Tensor:
    line = torch.linspace(-1, 1, _SAMPLES, dtype=torch.float64)
    return torch.cartesian_prod(line, line)
