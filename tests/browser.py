"""The page in a real browser: charts, sorting, slider, toggles, keyboard, contrast, three widths, and a live study.

``make test-browser`` runs it with the Chromium of the system, and fails if there is none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.screenshots import pictures

import wafl
from wafl.config.read import parse_experiment
from wafl.studies.pages.live import Server
from wafl.studies.study import Study

EVIL = "<script>document.title='hacked'</script>"
NAMES = ("chromium", "chromium-browser", "google-chrome")
CONTRAST = """() => {
  const light = text => { const parts = text.match(/[\\d.]+/g).map(Number);
    const linear = c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    const [r, g, b] = parts.slice(0, 3).map(part => linear(part / 255));
    return [.2126 * r + .7152 * g + .0722 * b, parts.length > 3 ? parts[3] : 1]; };
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !each.offsetParent || each.closest("script, svg, option")) continue;
    let below = each;
    while (below && light(getComputedStyle(below).backgroundColor)[1] === 0) below = below.parentElement;
    const [a] = light(getComputedStyle(each).color);
    const [b] = light(getComputedStyle(below || document.body).backgroundColor);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push([each.tagName, each.className, each.textContent.slice(0, 30), ratio]);
  }
  return found; }"""

NAMES_IN_TABLES = """() => [...document.querySelectorAll(".scroll")].flatMap(scroll => {
  const names = [...scroll.querySelectorAll("tbody td:first-child")], left = each => each.getBoundingClientRect().left;
  const before = names.map(left);
  scroll.scrollLeft = 1e6;
  return names.map((each, k) => {
    const text = document.createRange(); text.selectNodeContents(each.querySelector("span:not(.dot), a"));
    const tops = new Set([...text.getClientRects()].map(line => Math.round(line.top)));
    return { name: each.textContent, lines: tops.size, moved: left(each) - before[k],
      width: each.offsetWidth, scrolled: scroll.scrollLeft };
  }); })"""


@pytest.fixture(scope="module")
def chromium() -> Generator[Any, None, None]:
    from playwright.sync_api import sync_playwright

    program = next((result for name in NAMES if (result := shutil.which(name))), None)
    if program is None:
        pytest.fail(f"no browser: install one of {', '.join(NAMES)}, such as with apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(24, 1, 8, 8, generator=generator) for _ in range(4)]
    arrays = [(x, (x.mean((1, 2, 3)) > 0.5).long() + 1) for x in images]
    names = ["north", "south", EVIL, "west"]
    classes = ["none", "<b>dark</b>", "light"]
    clients = wafl.Federation.from_arrays(arrays, names=names, classes=classes, bounds=(0.0, 1.0), num_classes=3)
    model, timing = wafl.models.mlr(clients), {"rounds": 5, "local_steps": 3, "learning_rate": 0.1}
    sweep = wafl.sweep(model, clients, wafl.WAFL(), {"gamma": [0.5, 5.0]}, **timing)
    runs = [*sweep, wafl.fit(model, clients, wafl.FedAvg(), **timing)]
    path = tmp_path_factory.mktemp("report") / "report.html"
    return wafl.write_report(runs, clients, path, attack=wafl.PGD(epsilon=0.05, steps=3), attacked=[0.5, 1.0])


def opened(chromium: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """A page with its charts drawn, and a list of what goes wrong on it."""
    page, wrong = chromium.new_page(**options), list[str]()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(url)
    page.wait_for_selector("body[data-drawn=yes]", timeout=60_000)
    return page, wrong


@pytest.fixture
def page(chromium: Any, report: Path) -> Generator[Any, None, None]:
    """The report from disk, on which nothing may go wrong."""
    opened_page, wrong = opened(chromium, report.as_uri())
    yield opened_page
    assert wrong == []
    opened_page.close()


def wait_until(page: Any, expression: str, seconds: float = 30.0) -> None:
    """Poll from here: the page's own policy lets no text become code."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(100)


def test_a_page_from_disk_draws_every_chart_and_asks_nobody(page: Any) -> None:
    shown = page.locator(".chart:visible")
    assert shown.count() > 6
    for index in range(shown.count()):
        assert shown.nth(index).locator("svg.main-svg").count() > 0
        assert page.evaluate("box => box.querySelector('.plot').data.length > 0", shown.nth(index).element_handle())
    entries = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in entries if not name.startswith(("data:", "blob:"))] == []
    assert page.title() == "WAFL report", "a name became a script"
    assert page.locator("b:text('dark')").count() == 0


def test_tables_sort_by_every_column_with_the_keyboard(page: Any) -> None:
    table = page.locator("table").first

    def column(index: int) -> list[str]:
        return table.locator(f"tbody tr td:nth-child({index})").evaluate_all(
            "all => all.map(each => each.dataset.value)"
        )

    head = table.locator("th button").nth(1)
    head.focus()
    page.keyboard.press("Enter")
    falling = [float(value) for value in column(2)]
    assert falling == sorted(falling, reverse=True)
    assert table.locator("th").nth(1).get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    rising = [float(value) for value in column(2)]
    assert rising == sorted(rising)


def test_the_slider_moves_numbers_images_and_the_line_in_the_chart(page: Any) -> None:
    page.locator(".walks select").select_option(label="FedAvg")
    walk = page.locator(".walk:visible")
    slider, computed = walk.locator("input[type=range]"), walk.locator(".views button")

    def seen() -> tuple[str, dict[str, str], str, float]:
        box = walk.locator(".chart").element_handle()
        at = page.evaluate("box => box.querySelector('.plot').layout.shapes[0].x0", box)
        stop = walk.locator(".stop:visible")
        numbers = dict(
            zip(stop.locator("dt").all_inner_texts(), stop.locator("dd > span").all_inner_texts(), strict=True)
        )
        return walk.locator("output").inner_text(), numbers, stop.locator("img").nth(1).get_attribute("src"), at

    slider.focus()
    page.keyboard.press("Home")
    first = seen()
    page.keyboard.press("End")
    last = seen()
    assert all(a != b for a, b in zip(first, last, strict=True))
    assert first[0].endswith(", computed")
    assert last[0].endswith(", computed")
    assert slider.get_attribute("aria-valuetext") == last[0]
    assert computed.count() == 6
    radii = [float(text) for text in computed.all_inner_texts()]
    computed.nth(4).click()
    low = seen()
    assert (low[0], low[3]) == (f"{radii[4]:g}, computed", radii[4])
    assert computed.nth(4).get_attribute("aria-pressed") == "true"
    middle = (radii[4] + radii[5]) / 2
    slider.evaluate("(each, value) => { each.value = value; each.dispatchEvent(new Event('input')); }", middle)
    says, numbers, _, at = seen()
    assert f"between {radii[4]:g} and {radii[5]:g}" in says
    assert at == pytest.approx(middle)
    assert walk.locator(".views button[aria-pressed=true]").count() == 0
    certified = next(name for name in numbers if "certified" in name)
    assert numbers[certified] == f"\u2264 {last[1][certified]}", "what is certified for the larger ball holds here"
    between = (float(low[1]["loss reached"]) + float(last[1]["loss reached"])) / 2
    assert numbers["loss reached"].startswith("\u2248 ")
    assert float(numbers["loss reached"][2:]) == pytest.approx(between, rel=2e-3)
    page.locator(".walks select").select_option(index=0)
    assert page.locator(".walk:visible").count() == 1
    assert "gamma=" in page.locator(".walk:visible output").inner_text(), "a sweep says which model is where"


def test_legends_views_theme_and_copy_work(page: Any) -> None:
    chart = page.locator(".figure .chart:visible").first
    button = chart.locator(".legend button").first
    button.focus()
    page.keyboard.press("Space")
    assert chart.locator(".legend button").first.get_attribute("aria-pressed") == "false"
    assert page.evaluate("box => box.querySelector('.plot').data[0].visible", chart.element_handle()) is False
    figure = page.locator(".figure:has(.views)").first
    figure.locator(".views input").first.focus()
    page.keyboard.press("ArrowRight")
    assert (
        figure.locator(".chart:visible").get_attribute("data-view")
        == figure.locator(".views input").nth(1).input_value()
    )
    assert figure.locator(".chart:visible svg.main-svg").count() > 0
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.locator("details summary").first.click()
    copy = page.locator(".copy:visible").first
    copy.click()
    wait_until(page, "[...document.querySelectorAll('.copy')].some(each => each.textContent === 'Copied')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(chromium: Any, report: Path, scheme: str) -> None:
    page, _ = opened(chromium, report.as_uri(), color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    page.close()


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_names_stay_whole_and_in_sight_on_every_screen(chromium: Any, report: Path, width: int) -> None:
    """The page does not scroll sideways, its tables do, and names stay on one line while they do.

    What it looked like stays in the system's temporary folder, to be looked at: wafl-report-390.png.
    """
    page, wrong = opened(chromium, report.as_uri(), viewport={"width": width, "height": 900})
    page.screenshot(path=str(Path(tempfile.gettempdir(), f"wafl-report-{width}.png")), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    result = page.evaluate(NAMES_IN_TABLES)
    assert [each["name"] for each in result] == ["WAFL (gamma=0.5)", "WAFL (gamma=5.0)", "FedAvg"] * 2, "two tables"
    assert width > 390 or any(each["scrolled"] > 20 for each in result), "no table was wider than a phone"
    for each in result:
        assert each["lines"] == 1, f"{each} is broken"
        assert abs(each["moved"]) <= 1, f"{each} left its place"
        assert each["width"] <= 0.66 * width, f"{each} leaves no room for numbers"
    assert wrong == []
    page.close()


def test_the_keyboard_reaches_everything_that_can_be_used(page: Any) -> None:
    seen: set[str] = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        kind = page.evaluate(
            "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
        )
        seen.add(page.evaluate("document.activeElement.type || document.activeElement.tagName") + " " + kind)
        if page.evaluate("document.activeElement === document.body"):
            break
    text = " ".join(sorted(seen))
    for wanted in ("skip", "theme", "range", "radio", "select-one", "SUMMARY", "scroll"):
        assert wanted in text, f"Tab does not reach {wanted}"


def test_the_live_page_moves_as_a_run_proceeds(chromium: Any, tmp_path: Path) -> None:
    experiment = parse_experiment(
        {
            "name": "live",
            "seeds": [0],
            "data": {"dataset": "digits", "num_clients": 3, "iid": True},
            "schedule": {"rounds": 3, "local_steps": 1, "learning_rate": 0.1},
            "methods": [{"method": "FedAvg"}],
            "attack": {"kind": "none"},
        },
        "here",
    )
    study = Study.create(experiment, tmp_path / EVIL.replace("/", "_"))
    (tmp_path / "garbage").mkdir()
    for name in ("config.toml", "about.json"):
        (tmp_path / "garbage" / name).write_bytes(b"\xff\x00")
    with Server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, wrong = opened(chromium, server.url)
        assert page.locator("tbody tr").count() == 2
        assert "cannot be read" in page.locator("tbody").inner_text()
        page.evaluate("window.opened = 'once'")
        with study.folder.locked():
            for number in range(2):
                line = {"method": "fedavg", "seed": 0, "round": number, "loss": 2.5 - number, "seconds": 2.0}
                with study.folder.metrics.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                wait_until(page, f"document.querySelector('tbody').innerText.includes('round {number + 1} of 3')")
                assert page.locator("tbody progress").evaluate("each => each.value") == pytest.approx((number + 1) / 3)
            text = page.locator("tbody").inner_text()
            assert all(each in text for each in ("running", "FedAvg, training", "0:00:02", "1.5"))
        assert page.evaluate("window.opened") == "once", "the page was loaded again"
        page.locator(f"td a:text-is({json.dumps(study.folder.path.name)})").click()
        page.wait_for_selector("body[data-drawn=yes]")
        assert page.locator("h2").inner_text().endswith("interrupted")
        assert "FedAvg: interrupted, round 2 of 3" in page.locator(".lead").first.inner_text()
        page.evaluate("window.opened = 'once'")
        study.run()
        page.wait_for_selector(".state.finished", timeout=30_000)
        wait_until(page, "document.querySelector('.plot')?.data?.[0].x.length === 3")
        assert page.locator("progress").count() == 0, "a finished study has no progress"
        assert "best" not in page.locator(".cards").inner_text()
        assert page.evaluate("window.opened") == "once", "the page was loaded again"
        table = page.locator("table").first
        table.locator("th button").nth(1).click()
        lines = study.folder.metrics.read_text().splitlines()
        more = json.dumps({**json.loads(lines[-1]), "round": 3, "loss": 9.0})
        with study.folder.metrics.open("a") as file:
            file.write(more + "\n")
        wait_until(page, "[...document.querySelectorAll('.plot')].some(each => each.data?.[0].y.at(-1) === 9)")
        assert page.title() != "hacked"
        assert wrong == []
        server.shutdown()
        server.server_close()
        wait_until(page, "document.getElementById('pulse').textContent.includes('gone')")
        page.close()


def test_a_page_of_a_hundred_studies_opens(chromium: Any, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"study-{number}").mkdir()
        for name in ("config.toml", "about.json"):
            (tmp_path / f"study-{number}" / name).write_text("{}")
    with Server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, wrong = opened(chromium, server.url)
        assert page.locator("tbody tr").count() == 100
        assert wrong == []
        page.close()
        server.shutdown()


def test_a_page_of_a_study_prints(page: Any, tmp_path: Path) -> None:
    data = page.pdf(path=str(tmp_path / "page.pdf"))
    assert data.startswith(b"%PDF")
    assert len(data) > 20_000


@pytest.mark.processes
def test_the_site_is_searched_from_disk_and_no_page_overflows(chromium: Any, tmp_path: Path) -> None:
    """What ``make docs`` builds: nothing comes from a network, code wraps, and the search finds something."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    window = chromium.new_page(viewport={"width": 1400, "height": 900})
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    window.goto((tmp_path / "index.html").as_uri())
    window.keyboard.press("f")
    window.keyboard.type("certificate")
    window.wait_for_selector(".md-search-result__item")
    assert [url for url in asked if not url.startswith("file:")] == []
    window.close()
    pages = [page for page in tmp_path.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 20
    assert pictures(chromium, pages, tmp_path, tmp_path / "pictures") == []
