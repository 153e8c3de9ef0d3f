"""Safe display of untrusted text, such as file names, and of values of any type."""

from __future__ import annotations

import reprlib

_LONGEST = 300


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 100, 100
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 12

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002
        return repr(x) if x.bit_length() < 128 else f"a number of about {int(x.bit_length() * 0.30103) + 1} digits"


def quote(value: object) -> str:
    """Return `repr(value)`, shortened if it is long or nested, for the "got ..." of an error message.

    >>> quote("rotation"), len(quote("x" * 10**6)), quote(10**400)
    ("'rotation'", 100, 'a number of about 401 digits')
    """
    text = _Short().repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def visible(text: str, *, keep: str = "") -> str:
    r"""Return `text` with characters escaped that are not printable, except those in `keep`.

    These are control characters, line breaks, characters that change the direction of writing, and bytes of file
    names that are not UTF-8.

    >>> print(visible("red\x1b[31m\n.png"))
    red\x1b[31m\n.png
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
