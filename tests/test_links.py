"""Links of README and of all pages lead somewhere: files, sections, and images, which have an alternative text."""

from __future__ import annotations

import pytest

from tests.pages import LINK, PAGES, ROOT, anchors, links

SHORTEST = 3
"""Words of an alternative text."""


def problem(page: str, image: bool, text: str, target: str) -> str | None:
    """Explain why a link on a page leads nowhere or an image has no alternative text."""
    if image and len(text.split()) < SHORTEST:
        return f"{target} needs an alternative text, not {text!r}"
    if "://" in target or target.startswith("mailto:"):
        return None
    file, _, anchor = target.partition("#")
    path = (ROOT / page).parent / file if file else ROOT / page
    if not path.exists():
        return f"there is no {target}"
    if page == "CHANGELOG.md":  # sections have gone since
        return None
    if anchor and path.suffix == ".md" and anchor not in anchors(path.resolve().relative_to(ROOT).as_posix()):
        return f"{file or page} has no section #{anchor}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_images_have_an_alternative_text(page: str) -> None:
    assert [reason for link in links(page) if (reason := problem(page, *link))] == []


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (ROOT / page).parent.joinpath(target.partition("#")[0]).resolve()
        for page in PAGES
        for _, _, target in links(page)
        if "://" not in target and not target.startswith("#")
    }
    pages = [page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"]
    assert [page for page in pages if ROOT / page not in linked] == []


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("[a](docs/nowhere.md)", "there is no docs/nowhere.md"),
        ("[a](docs/faq.md#nowhere)", "docs/faq.md has no section #nowhere"),
        ("[a](#nowhere)", "README.md has no section #nowhere"),
        ("![](docs/images/front.png)", "needs an alternative text"),
        ("![front](docs/images/front.png)", "needs an alternative text, not 'front'"),
        ("![a good one is long](docs/images/none.png)", "there is no docs/images/none.png"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, message: str) -> None:
    ((image, text, target),) = LINK.findall(link)
    assert message in (problem("README.md", bool(image), text, target) or "")
