"""A page as a reader without a browser sees it, and checks that it is well formed."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "img", "source", "br", "hr", "link", "input"}
_RUNS = {"script", "iframe", "object", "embed", "link", "form", "base", "audio", "video"}


@dataclass
class Page(HTMLParser):
    """A page, read strictly: every element is closed, in order."""

    text: str
    words: list[str] = field(default_factory=list)
    headings: list[tuple[int, str]] = field(default_factory=list)
    images: list[dict[str, str | None]] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.feed(self.text)
        self.close()
        if self._open:
            raise ValueError(f"The page ends with {self._open} open.")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if len(named) != len(attrs):
            raise ValueError(f"<{tag}> has an attribute twice.")
        if tag in _RUNS:
            self.forbidden.append(tag)
        self.forbidden += [name for name in named if name.startswith("on") or name == "style"]
        self.addresses += [str(named[k]) for k in ("src", "href", "srcset") if k in named]
        if "id" in named:
            self.ids.append(str(named["id"]))
        if tag == "img":
            self.images.append(named)
        if tag[0] == "h" and tag[1:].isdigit():
            self.headings.append((int(tag[1]), ""))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise ValueError(f"</{tag}> closes what is not open.")

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.words.append(data)
        if self._open and self._open[-1][0] == "h" and self._open[-1][1:].isdigit():
            level, before = self.headings[-1]
            self.headings[-1] = (level, before + data)

    @property
    def seen(self) -> str:
        """Text of the element, in one line."""
        return " ".join(" ".join(self.words).split())
