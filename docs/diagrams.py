"""Draws the diagrams of these pages: `python docs/diagrams.py` writes docs/images/*.svg.

Every text lies in a filled box and lines are grey: one picture serves light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"

FILLS = {
    "server": ("#00695c", "#ffffff"),
    "client": ("#37507a", "#ffffff"),
    "message": ("#ffe0b2", "#3e2723"),
    "zone": ("#5f6b78", "#ffffff"),
    "never": ("#8e2430", "#ffffff"),
}
"""Colours (fill, text) by kind of box."""

LINE = "#7f8b99"
GLYPH, LEADING, MARGIN = 7.0, 18, 8  # pixels: width of a character, line, inside a box


@dataclass
class Drawing:
    """A picture of boxes, arrows and zones.

    Attributes:
        title: description for readers who do not see it.
    """

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, text: str, kind: str = "server") -> None:
        """Draws lines of text in a filled box, whose height follows from them.

        Raises:
            ValueError: a line does not fit.
        """
        lines = text.split("\n")
        if (longest := max(lines, key=len)) and len(longest) * GLYPH + 2 * MARGIN > width:
            raise ValueError(f"{longest!r} does not fit into {width} pixels.")
        fill, ink = FILLS[kind]
        height = len(lines) * LEADING + MARGIN
        round_ = height // 2 if kind == "message" and len(lines) == 1 else 6
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{round_}" fill="{fill}"/>'
        )
        for number, line in enumerate(lines):
            self.parts.append(
                f'<text x="{x + width / 2:g}" y="{y + MARGIN + 9 + number * LEADING}" '
                f'fill="{ink}">{escape(line)}</text>'
            )

    def arrow(self, *points: tuple[int, int]) -> None:
        """Draws an arrow through some points."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.insert(0, f'<polyline points="{path}" marker-end="url(#head)"/>')

    def zone(self, x: int, y: int, width: int, height: int, title: str) -> None:
        """Draws a dashed border with a title on it."""
        self.parts.insert(
            0,
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" '
            f'stroke="{LINE}" stroke-width="2" stroke-dasharray="7 5"/>',
        )
        self.box(x + 14, y - 13, int(len(title) * GLYPH) + 2 * MARGIN + 4, title, "zone")

    def svg(self) -> str:
        """Returns the file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" '
                'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" '
                'font-size="13" text-anchor="middle">',
                f"<title>{escape(self.title)}</title>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
                'markerHeight="7" orient="auto-start-reverse">'
                f'<path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/></marker></defs>',
                f'<g fill="none" stroke="{LINE}" stroke-width="2">',
                *(part for part in self.parts if part.startswith("<polyline")),
                "</g>",
                *(part for part in self.parts if not part.startswith("<polyline")),
                "</svg>\n",
            ]
        )


def central_round() -> Drawing:
    """One round of the central mode."""
    drawing = Drawing(
        "One round: the server sends generated pictures, each client returns a noised gradient.",
        760, 262,
    )  # fmt: skip
    drawing.zone(10, 22, 220, 230, "server")
    drawing.zone(410, 22, 340, 230, "beside the data: each of K clients")
    drawing.box(30, 52, 180, "generator G draws\nn pictures X")
    drawing.box(30, 188, 180, "mean of the replies,\none step of G")
    drawing.arrow((120, 188), (120, 98))
    drawing.box(430, 52, 130, "records stay", "client")
    drawing.box(584, 52, 150, "secret sample\nwith probability q", "client")
    drawing.arrow((560, 66), (584, 66))
    drawing.box(480, 124, 250, "gradient at X, clipped to Δ", "client")
    drawing.arrow((665, 98), (665, 124))
    drawing.box(480, 188, 250, "plus noise of std σ·S\n(S: sensitivity of the clip)", "client")
    drawing.arrow((605, 150), (605, 188))
    drawing.arrow((210, 75), (380, 75), (380, 137), (480, 137))
    drawing.box(248, 62, 116, "pictures X", "message")
    drawing.arrow((480, 210), (210, 210))
    drawing.box(244, 197, 150, "noised gradient", "message")
    return drawing


def local_mode() -> Drawing:
    """The local mode."""
    drawing = Drawing(
        "Once, each client sends pictures with noise on them; then the server trains without ε.",
        760, 236,
    )  # fmt: skip
    drawing.zone(10, 22, 270, 204, "beside the data: each client")
    drawing.zone(470, 22, 280, 204, "server")
    drawing.box(40, 48, 210, "records stay here", "client")
    drawing.box(40, 104, 210, "public map f: fewer numbers", "client")
    drawing.box(40, 160, 210, "Laplace, Gaussian noise;\nlabels randomized", "client")
    drawing.arrow((145, 74), (145, 104))
    drawing.arrow((145, 130), (145, 160))
    drawing.arrow((250, 182), (490, 182))
    drawing.box(292, 160, 166, "once: privatized\npictures and labels", "message")
    drawing.box(490, 160, 240, "noisy pictures Y:\nall that the server ever has")
    drawing.box(490, 48, 240, "generator G: match f(G) to Y,\ncost and λ as the noise")
    drawing.arrow((610, 160), (610, 94))
    drawing.box(510, 112, 200, "any number of steps: no ε", "message")
    return drawing


def trust_boundary() -> Drawing:
    """What crosses the trust boundary."""
    drawing = Drawing(
        "A request meets policy and ledger before any record; only a noised reply leaves.", 760, 330
    )
    drawing.zone(10, 22, 390, 298, "trusted by its owner: the node")
    drawing.zone(560, 22, 190, 298, "not trusted")
    drawing.box(30, 52, 120, "policy.toml", "client")
    drawing.box(200, 52, 180, "1. policy: allowed?", "client")
    drawing.box(30, 110, 120, "ledger", "client")
    drawing.box(200, 110, 180, "2. charge and commit ε", "client")
    drawing.box(30, 168, 120, "records", "client")
    drawing.box(200, 168, 180, "3. sample, clip, noise", "client")
    drawing.box(30, 226, 120, "stored replies", "client")
    drawing.box(200, 226, 180, "4. store, then send", "client")
    for y in (65, 123, 181):
        drawing.arrow((150, y), (200, y))
        drawing.arrow((290, y + 13), (290, y + 45))
    drawing.arrow((200, 239), (150, 239))
    drawing.box(580, 52, 150, "server, and who\ncontrols it")
    drawing.box(580, 214, 150, "generator,\nprivacy.json")
    drawing.arrow((655, 96), (655, 214))
    drawing.box(590, 142, 130, "post-processing", "message")
    drawing.arrow((580, 65), (380, 65))
    drawing.box(416, 52, 130, "signed request", "message")
    drawing.arrow((380, 239), (480, 239), (480, 84), (580, 84))
    drawing.box(414, 142, 132, "noised reply,\nor a code", "message")
    drawing.box(24, 278, 362, "never leave: records, batch sizes, losses, errors", "never")
    return drawing


def deployment() -> Drawing:
    """A deployment."""
    drawing = Drawing(
        "Nodes and submitters connect to one SuperLink; nodes only make outgoing connections.",
        760, 262,
    )  # fmt: skip
    drawing.zone(10, 22, 206, 96, "hospital 1")
    drawing.zone(10, 156, 206, 96, "hospital 2")
    drawing.zone(316, 66, 190, 142, "the operator")
    drawing.zone(596, 66, 154, 142, "whoever submits")
    for y in (44, 178):
        drawing.box(26, y, 174, "fedsink node", "client")
        drawing.box(26, y + 34, 174, "policy, ledger, data", "client")
    drawing.box(332, 96, 158, "proxy, one port")
    drawing.box(332, 152, 158, "SuperLink,\nserver: runs/NAME")
    drawing.arrow((411, 122), (411, 152))
    drawing.box(606, 96, 134, "fedsink deploy")
    drawing.box(606, 152, 134, "runs/NAME")
    drawing.arrow((673, 122), (673, 152))
    drawing.arrow((200, 57), (258, 57), (258, 104), (332, 104))
    drawing.arrow((200, 191), (258, 191), (258, 114), (332, 114))
    drawing.box(222, 134, 88, "TLS,\nnode key", "message")
    drawing.arrow((606, 109), (490, 109))
    drawing.box(518, 96, 64, "TLS", "message")
    return drawing


DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    "central-round": central_round,
    "local-mode": local_mode,
    "trust-boundary": trust_boundary,
    "deployment": deployment,
}
"""Diagrams by the names of their files."""


if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg())
