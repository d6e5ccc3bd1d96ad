"""What every page must be: whole, accessible, escaped, without a request."""

import re
from html.parser import HTMLParser

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>"
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """All tags with attributes, checking that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def whole(page: str) -> Page:
    """The page, which nests, names its headers and images, and fetches nothing."""
    parsed = Page(page)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert not re.findall(r"url\(|@import|&#", style)
    assert "://" not in page
    assert not parsed.all("script") + parsed.all("link")
    assert any("default-src 'none'" in (m.get("content") or "") for m in parsed.all("meta"))
    assert parsed.open == []
    assert parsed.all("html") == [{"lang": "en"}]
    assert all(len(image.get("alt") or "") > 20 for image in parsed.all("img"))
    assert all(header.get("scope") in {"row", "col"} for header in parsed.all("th"))
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(link["href"] or "").removeprefix("#") for link in parsed.all("a")} <= set(ids)
    return parsed


def harmless(page: str) -> None:
    """Nothing of `HOSTILE` became a tag, or an attribute of one."""
    parsed = Page(page)
    assert not parsed.all("script")
    assert all((one["src"] or "").startswith("data:") for one in parsed.all("img"))
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
