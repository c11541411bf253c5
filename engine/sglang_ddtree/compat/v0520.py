"""SGLang 0.5.20: the line the defaults of ``base`` describe."""

from .base import Line

LINE = Line()
