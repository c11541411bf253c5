"""The pictures that Textual draws, in a third of their space: what is seen is the same, and a change is a few lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pytest_textual_snapshot import SVGImageExtension

_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # loaded from the network; the viewer's own will do
_LINE_CLIPS = re.compile(r'<clipPath id="[\w-]*line-\d+">\s*<rect [^>]*/>\s*</clipPath>\s*')
_DECORATED = re.compile(r"\.([\w-]+) \{[^}]*text-decoration")
_TEXT = re.compile(r'<text class="([\w-]+)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"[^>]*>([^<]*)</text>')
_UNIQUE = re.compile(r"\bterminal-(?:\d+-)?(?=r\d|matrix|title|clip)")
_BACKGROUND = re.compile(
    r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" shape-rendering="crispEdges"/>'
)


_SINGLE_BLANK = re.compile(r"(?<![\xa0])\xa0(?![\xa0])")
BLANK = "\xa0"
CELL = 12.2  # width of a terminal's cell


@dataclass(frozen=True)
class Box:
    """A run of cells with one background."""

    fill: str
    x: float
    y: float
    width: float
    height: float

    def joins(self, right: Box) -> bool:
        return (self.fill, self.y) == (right.fill, right.y) and abs(self.x + self.width - right.x) < 0.01

    def __str__(self) -> str:
        edges = f'x="{self.x:.6g}" y="{self.y:.6g}" width="{self.width:.6g}" height="{self.height:.6g}"'
        return f'<rect fill="{self.fill}" {edges} shape-rendering="crispEdges"/>'


def lean(svg: str) -> str:
    """Without fonts, clips of lines, blank texts and unique names; neighbours of one background are one box."""
    decorated = set(_DECORATED.findall(svg))
    svg = _TEXT.sub(lambda found: _text(found, blanks=found[1] in decorated), svg)
    for pattern in (_FONTS, _LINE_CLIPS, _UNIQUE):
        svg = pattern.sub("", svg)
    svg = svg.replace("Fira Code, monospace", "monospace")
    boxes = iter(["\n".join(str(box) for box in _joined(svg))])
    svg = _BACKGROUND.sub(lambda _: next(boxes, ""), svg)  # all where the first one stood
    return re.sub(r"\s*\n\s*", "\n", svg.replace("<text ", "\n<text "))


def _text(found: re.Match[str], *, blanks: bool) -> str:
    """A text from its first to its last sign, "" for blanks alone; with `blanks`, which an underline shows, whole."""
    name, x, y, length, text = found.groups()
    left, right = float(x), float(x) + float(length)
    text = text.replace("\n", "").replace("&#160;", BLANK)
    if not blanks:
        left += CELL * (len(text) - len(text.lstrip(BLANK)))
        right -= CELL * (len(text) - len(text.rstrip(BLANK)))
        text = text.strip(BLANK)
    if not text:
        return ""
    text = _SINGLE_BLANK.sub(" ", text).replace(BLANK, "&#160;")  # viewers draw neighbouring spaces as one
    return f'<text class="{name}" x="{left:.6g}" y="{y}" textLength="{right - left:.6g}">{text}</text>'


def _joined(svg: str) -> list[Box]:
    boxes: list[Box] = []
    for found in _BACKGROUND.finditer(svg):
        box = Box(found[1], *(float(part) for part in found.groups()[1:]))
        if boxes and boxes[-1].joins(box):
            boxes[-1] = replace(boxes[-1], width=boxes[-1].width + box.width)
        else:
            boxes.append(box)
    return boxes


class LeanImages(SVGImageExtension):
    """Keeps and compares snapshots as lean pictures."""

    def serialize(self, data: str, **options: object) -> str:  # type: ignore[override]
        return lean(super().serialize(data, **options))
