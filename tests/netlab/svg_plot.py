"""A plot of ratios over q as SVG text: a panel for each moment of sending, a line for each wire codec; both axes are
logarithmic."""

import math

COLOURS = ["#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f", "#444444"]
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 220, 46, 34, 26
Y_MAX = 6


def plot(panels):
    """`panels`: {title: {line: {q: ratio}}}."""
    qs = sorted({q for lines in panels.values() for ratios in lines.values() for q in ratios})
    span = max(math.log(qs[-1] / qs[0]), 1e-9)

    def x(q):
        return 12 + math.log(q / qs[0]) / span * (WIDTH - 24)

    def y(ratio):
        ratio = min(max(ratio, 0.9), Y_MAX)
        return HEIGHT - math.log(ratio / 0.9) / math.log(Y_MAX / 0.9) * HEIGHT

    total = LEFT + len(panels) * (WIDTH + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{TOP + HEIGHT + 50}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for number, (title, lines) in enumerate(panels.items()):
        out.append(f'<g transform="translate({LEFT + number * (WIDTH + GAP)},{TOP})">')
        out.append(f'<text x="{WIDTH / 2}" y="-12" text-anchor="middle" font-size="13">send each {title}</text>')
        for ratio in (1, 1.5, 2, 3, 5):
            out.append(f'<path d="M0 {y(ratio):.1f}H{WIDTH}" stroke="#ddd"/>')
            if number == 0:
                out.append(f'<text x="-6" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:g}</text>')
        for q in qs:
            out.append(f'<text x="{x(q):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{q:g}</text>')
        out.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
        for line, (name, ratios) in enumerate(lines.items()):
            colour = COLOURS[line % len(COLOURS)]
            points = " ".join(f"{x(q):.1f},{y(r):.1f}" for q, r in sorted(ratios.items()))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out.append(f'<text x="{WIDTH - 8}" y="{16 + 14 * line}" text-anchor="end" fill="{colour}">{name}</text>')
        out.append("</g>")
    out.append(f'<text x="{LEFT}" y="{TOP + HEIGHT + 38}">q: link rate over the rate of producing KV in bf16; '
               'vertical: time to first token over that with an unshaped link</text>')
    out.append("</svg>\n")
    return "\n".join(out)
