"""Draws pair times relative to the limit as horizontal bars, in plain SVG with a card of its own
behind them, so that it reads in light and in dark mode. Called by bench.py."""

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH, MARGIN, LABELS, VALUES = 760, 24, 170, 56
BAR, BAR_GAP, GROUP_GAP, TOP, BOTTOM = 12, 3, 16, 92, 24
PROGRAMS = [("ferry", "ferry"), ("dedup", "Open MPI, dedup"), ("a2av", "Open MPI, a2av")]

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .quiet { fill: #59636e }
  .card { fill: #ffffff; stroke: #d1d9e0 }
  .grid { stroke: #eaeef2 }
  .limit { stroke: #1f2328; stroke-dasharray: 4 3 }
  .ferry { fill: #0969da } .dedup { fill: #9aa4af } .a2av { fill: #d4a72c }
  .number { font-variant-numeric: tabular-nums } .ours { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .quiet { fill: #9198a1 }
    .card { fill: #0d1117; stroke: #3d444d }
    .grid { stroke: #21262d }
    .limit { stroke: #f0f6fc }
    .ferry { fill: #4493f8 } .dedup { fill: #6e7681 } .a2av { fill: #bb8009 }
  }
"""


def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def text(x, y, words, css="", anchor="start"):
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{css}" {place}>{escape(words)}</text>'


def rectangle(x, y, width, height, css, radius=2):
    return (f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' rx="{radius}"/>')


def line(x, top, bottom, css):
    return f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def values_of(row):
    """The bars of one shape: (program, pair time over the limit)."""
    return [(program, row[f"{program}_over_limit"]) for program, _ in PROGRAMS
            if f"{program}_over_limit" in row]


def group_height(row):
    return max(2, len(values_of(row))) * (BAR + BAR_GAP) + GROUP_GAP


def draw_group(row, top, left, scale):
    tokens, hidden, ranks, experts = row["shape"]
    label_x = left - 12
    parts = [text(label_x, top + 13, f"{tokens} tokens, {ranks} ranks", "", "end"),
             text(label_x, top + 29, f"hidden {hidden}, {experts} experts", "quiet", "end")]
    for at, (program, value) in enumerate(values_of(row)):
        y = top + at * (BAR + BAR_GAP)
        css = "number ours" if program == "ferry" else "number"
        parts.append(rectangle(left, y, value * scale, BAR, program))
        parts.append(text(left + value * scale + 6, y + BAR - 2, f"{value:.2f}", css))
    return parts


def draw_legend(programs, left):
    x, parts = left, []
    for program, name in PROGRAMS:
        if program in programs:
            parts += [rectangle(x, 56, BAR, BAR, program), text(x + BAR + 6, 66, name)]
            x += BAR + 6 + 7 * len(name) + 18
    return parts


def draw(rows):
    """`rows` are those of bench_report.shapes(); returns the text of the file."""
    values = [value for row in rows for value in values_of(row)]
    most = max((value for _, value in values), default=1)
    left = MARGIN + LABELS
    scale = (WIDTH - left - MARGIN - VALUES) / max(most, 1.5)
    bottom = TOP + sum(map(group_height, rows))
    height = bottom + BOTTOM
    step = 1 if most <= 16 else 5
    parts = [rectangle(0.5, 0.5, WIDTH - 1, height - 1, "card", 8),
             text(MARGIN, 36, "Time of a dispatch and its combine, over the memory traffic alone",
                  "title")]
    parts += draw_legend({program for program, _ in values}, MARGIN)
    parts.append(text(WIDTH - MARGIN, 66, "tokens are per rank; shorter is better", "quiet", "end"))
    for tick in range(0, int(most) + 1, step):
        parts.append(line(left + tick * scale, TOP - 8, bottom - GROUP_GAP + 6, "grid"))
    top = TOP
    for row in rows:
        parts += draw_group(row, top, left, scale)
        top += group_height(row)
    parts.append(line(left + scale, TOP - 8, bottom - GROUP_GAP + 6, "limit"))
    parts.append(text(left + scale, bottom + 8, "limit = 1", "quiet", "middle"))
    body = "\n".join(parts)
    return (f'<svg xmlns="{NAMESPACE}" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" role="img">\n'
            f"<title>Pair time relative to the limit, lower is better</title>\n"
            f"<style>{STYLE}</style>\n{body}\n</svg>\n")
