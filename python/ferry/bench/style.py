"""The style of all pictures: sizes, colours, fonts, and the file that is written. A chart draws on the axes that
figure() returns and passes the figure to save(), both inside `with look():`."""

import io
import re
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from .results import ResultsError

WIDTH_IN, NOTE_IN, PIXELS_PER_INCH = 7.6, 0.2, 200
INK, QUIET, CARD, EDGE, GRID = "#1f2328", "#59636e", "#ffffff", "#d1d9e0", "#eaeef2"
# The colours that replace these in an svg where the viewer prefers a dark colour scheme.
DARK = {INK: "#f0f6fc", QUIET: "#9198a1", CARD: "#0d1117", EDGE: "#3d444d", GRID: "#262c36"}
# Okabe and Ito's colours, which stay apart for colour-blind readers, in an order that also keeps neighbours apart.
SERIES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"]
MARKERS = ["o", "s", "^", "D", "v", "P"]


def look():
    """A context manager that sets matplotlib's settings, and restores the old ones at the end."""
    return matplotlib.rc_context({
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "text.color": INK,
        "axes.edgecolor": QUIET, "axes.linewidth": 0.8, "axes.labelcolor": QUIET, "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID,
        "grid.linewidth": 0.8, "xtick.color": QUIET, "ytick.color": QUIET, "axes.facecolor": "none",
        "figure.facecolor": "none", "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "ferry"})


def figure(title, subtitle, height_in, left_in, right_in, bottom_in=0.55, top_in=0.85, note=None):
    """Returns (figure, axes). The axes fill the space inside the margins; the titles are at the top left, the note is
    at the bottom."""
    height_in, bottom_in = (height_in + NOTE_IN, bottom_in + NOTE_IN) if note else (height_in, bottom_in)
    picture = Figure(figsize=(WIDTH_IN, height_in))
    picture.text(0.22 / WIDTH_IN, 0.12 / height_in, note or "", fontsize=6.5, color=QUIET)
    picture.add_artist(FancyBboxPatch((0.005, 0.005), 0.99, 0.99, transform=picture.transFigure, facecolor=CARD,
                                      edgecolor=EDGE, linewidth=0.8, zorder=-1, mutation_aspect=WIDTH_IN / height_in,
                                      boxstyle="round,pad=0,rounding_size=0.01"))
    picture.text(0.22 / WIDTH_IN, 1 - 0.34 / height_in, title, fontsize=12, fontweight="bold")
    picture.text(0.22 / WIDTH_IN, 1 - 0.56 / height_in, subtitle, color=QUIET)
    axes = picture.add_axes((left_in / WIDTH_IN, bottom_in / height_in, 1 - (left_in + right_in) / WIDTH_IN,
                             1 - (top_in + bottom_in) / height_in))
    return picture, axes


def save(picture, path, title):
    path = Path(path)
    kind = path.suffix[1:].lower()
    if kind not in ("svg", "png"):
        raise ResultsError(f"{path}: a picture is an svg or a png, not '{path.suffix}'")
    drawn = io.BytesIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None} if kind == "svg" else {"Software": None}
    picture.savefig(drawn, format=kind, dpi=PIXELS_PER_INCH, metadata=nothing)
    content = drawn.getvalue()
    try:
        path.write_bytes(lean_svg(content.decode(), title).encode() if kind == "svg" else content)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None


def lean_svg(text, title):
    """Returns the text of an svg without its prologue and the names of other formats, with a title and a dark mode."""
    text = text[text.index("<svg"):]
    text = re.sub(r' xmlns:xlink="[^"]*"| version="1.1"|\n *<metadata>.*?</metadata>', "", text, flags=re.S)
    text = text.replace("xlink:href", "href").replace(" viewBox", ' role="img" viewBox', 1)
    dark = "".join(f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
                   for light, dark in DARK.items() for part in ("fill", "stroke"))
    head = f"\n <title>{escape(title)}</title>\n <style>@media (prefers-color-scheme: dark){{{dark}}}</style>"
    text = re.sub(r"(<svg[^>]*>)", lambda match: match[1] + head, text, count=1)
    return re.sub(r"[ \t]+\n", "\n", text)
