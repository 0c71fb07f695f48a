"""The documentation's site in Chromium: wide and narrow, light and dark."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT
from PIL import Image
from playwright.sync_api import TimeoutError as TooLate
from playwright.sync_api import sync_playwright

from suite import browser as installed
from suite.waiting import patience, wait_for

PAGES = [path.stem for path in sorted((ROOT / "docs").glob("*.md"))]
SCHEMES = ("light", "dark")
#: Width and height of the window; the landing page's picture is in it.
WINDOWS = {"wide": (1440, 1200), "narrow": (390, 1150)}
REFERENCES = Path(__file__).parent / "site"
#: The share of a screenshot's rows that may differ. Other fonts: 0; a missing picture: 0.16.
TOLERANCE = 0.08
CONTRAST = Path(__file__).with_name("contrast.js")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_):
        """Leave the test's output alone."""

    def copyfile(self, source, outputfile):
        """Send a file, unless the page has been left by now."""
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)


@contextlib.contextmanager
def served(folder):
    """Serve a folder on the loopback interface; yield its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def unavailable(reason):
    """Skip a test, but not where all of them have to run."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"under CI the site has to be tested: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    """Start Chromium."""
    if (path := installed.find()) is None:
        unavailable(f"there is no Chromium; {installed.HOW}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory, browser):
    """Build the site and serve it; give its address."""
    if importlib.util.find_spec("mkdocs") is None:
        unavailable("MkDocs isn't installed; 'make docs' installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with served(folder) as address:
        yield address


@functools.cache
def context(browser, window, scheme):
    """Return what all pages in such a window share: the files that were loaded once."""
    width, height = WINDOWS[window]
    return browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )


@contextlib.contextmanager
def opened(browser, window, scheme="light"):
    """Open an empty page in a window."""
    with context(browser, window, scheme).new_page() as page:
        yield page


def visit(page, address):
    """Open an address; return what went wrong with it."""
    wrong = []

    def failed(request):
        if "ERR_ABORTED" not in request.failure:  # as of a page that leads to another at once
            wrong.append(f"not loaded: {request.url}")

    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", failed)
    page.goto(address)
    page.evaluate("document.fonts.ready")
    wrong += page.evaluate("""async () => {
        const images = [...document.images]
        for (const image of images) image.loading = "eager"
        const loaded = await Promise.allSettled(images.map(image => image.decode()))
        return images.filter((_, i) => loaded[i].status !== "fulfilled")
            .map(image => `no picture: ${image.src}`)
    }""")
    width = page.evaluate("document.documentElement.scrollWidth")
    if width > page.viewport_size["width"]:
        wrong.append(f"the page is {width} px wide")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_on_a_phone_and_loads_without_errors(browser, site, name):
    with opened(browser, "narrow") as page:
        assert visit(page, f"{site}/{name}.html") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ("<img src='nowhere.png'>", "no picture: .*/nowhere.png"),
        ("<p style='width: 500px'>Wide</p>", "the page is 5.. px wide"),
        ("<script>console.error('no, really')</script>", "no, really"),
        ("<script>undefined.name</script>", "Cannot read properties of undefined"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(browser, site, broken, found):
    with opened(browser, "narrow") as page:

        def spoil(route):
            text = route.fetch().text().replace("</article>", f"{broken}</article>")
            route.fulfill(body=text, content_type="text/html")

        page.route("**/limits.html", spoil)
        assert re.search(found, "\n".join(visit(page, f"{site}/limits.html")))


@pytest.mark.slow
def test_every_link_of_the_menus_leads_to_a_page_and_every_page_is_in_them(browser, site):
    with opened(browser, "wide") as page:
        page.goto(f"{site}/index.html")
        links = page.evaluate(
            "[...document.querySelectorAll('header a, .md-tabs a, .md-nav a')].map(a => a.href)"
        )
        for link in set(links):
            address, _, anchor = link.partition("#")
            answer = page.request.get(address)
            assert answer.ok, f"the menu has {link}: {answer.status}"
            assert not anchor or f'id="{anchor}"' in answer.text(), link
        assert {Path(link.partition("#")[0]).stem for link in links} == set(PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["index", "quick-start", "reference"])
def test_text_stands_out_from_what_is_behind_it(browser, site, name, scheme):
    with opened(browser, "wide", scheme) as page:
        page.goto(f"{site}/{name}.html")
        assert page.evaluate(CONTRAST.read_text()) == []


@pytest.mark.slow
def test_grey_text_on_grey_is_found(browser):
    with opened(browser, "wide") as page:
        page.set_content("""<body style="background: #ddd"><p style="color: #999">Faint</p>
            <p style="opacity: 0.3">Thin</p><p>Clear</p><h1 style="color: #767676">Large</h1>""")
        found = page.evaluate(CONTRAST.read_text())
        assert [line.split(": ")[0] for line in found] == ["Faint", "Thin"]


@pytest.mark.slow
def test_search_finds_a_page(browser, site):
    with opened(browser, "wide") as page:
        page.goto(f"{site}/index.html")
        box = page.get_by_role("textbox", name="Search")
        result = page.locator("a.md-search-result__link[href*='/distribution.html']").first

        def found():
            box.fill("parameter server")
            box.press("s")  # the page looks when a key is let go
            result.wait_for(timeout=3000)
            return True

        # On a busy machine the page takes a while to listen to its box.
        wait_for(found, "a result", ignoring=TooLate)
        result.click()
        page.wait_for_url(re.compile(r"/distribution\.html"), wait_until="commit")


def picture(page, path):
    """Take a screenshot without its letters, whose shapes are those of the machine, 360 px wide."""
    page.screenshot(path=path, style="* { color: transparent !important }")
    with Image.open(path) as taken:
        height = round(taken.height * 360 / taken.width)
        small = taken.convert("RGB").resize((360, height), Image.Resampling.BOX)
    small.quantize(32).save(path, optimize=True)
    return path


def cells(path):
    """Return the mean colours of a picture's cells of 20 x 12 px."""
    with Image.open(path) as taken:
        size = (taken.width // 20, taken.height // 12)
        return np.asarray(taken.convert("RGB").resize(size, Image.Resampling.BOX), float)


def without_counterpart(rows, others, distance=8):
    """Return the share of rows of cells with no similar one near their place: lines may break."""
    near = [others[max(0, i - distance) : i + distance + 1] for i in range(len(rows))]
    pairs = zip(rows, near, strict=True)
    return np.mean([np.abs(each - row).max(-1).mean(-1).min() > 6 for row, each in pairs])


def difference(*pictures):
    """Return the share of rows that only one of two pictures has."""
    first, second = map(cells, pictures)
    return max(without_counterpart(first, second), without_counterpart(second, first))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("window", WINDOWS)
def test_the_landing_page_looks_as_before(browser, site, tmp_path, window, scheme):
    reference = REFERENCES / f"{window}-{scheme}.png"
    with opened(browser, window, scheme) as page:
        page.goto(f"{site}/index.html")
        taken = picture(page, tmp_path / reference.name)
    assert difference(taken, reference) <= TOLERANCE, (
        f"the landing page looks different. If it should: cp {taken} {reference}"
    )


def styled(css):
    """Return what gives a page a style besides its own."""
    element = f"Object.assign(document.createElement('style'), {{textContent: `{css}`}})"
    code = f"addEventListener('DOMContentLoaded', () => document.head.append({element}))"
    return lambda page: page.add_init_script(code)


def without(pattern):
    """Return what keeps a page from loading a file."""
    return lambda page: page.route(pattern, lambda route: route.abort())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "is_seen"),
    [
        (styled("* { font-family: Liberation Serif !important }"), False),
        (styled("* { font-family: DejaVu Sans !important }"), False),
        (without("**/road.svg"), True),
        (without("**/main.*.css"), True),
        (without("**/site.css"), True),
        (styled(".md-content { margin-left: 200px }"), True),
        (styled("pre, code { background: none !important }"), True),
    ],
    ids=["serif", "sans", "no picture", "no style", "not our style", "moved", "no boxes"],
)
@pytest.mark.parametrize(("window", "scheme"), [("narrow", "light"), ("wide", "dark")])
def test_other_fonts_are_no_difference_but_what_is_broken(
    browser, site, tmp_path, window, scheme, changed, is_seen
):
    with opened(browser, window, scheme) as page:
        changed(page)
        page.goto(f"{site}/index.html")
        taken = picture(page, tmp_path / "taken.png")
    assert (difference(taken, REFERENCES / f"{window}-{scheme}.png") > TOLERANCE) == is_seen


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)


@pytest.fixture
def released(tmp_path):
    """Return a repository with this one's settings and a single page, and two releases."""
    folder = tmp_path / "clone"
    for name in ("scripts", "docs/assets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", folder)
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (folder / "mkdocs.yml").write_text(f"{settings}\n")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Tester")
    git(folder, "config", "user.email", "tester@example.org")
    for version in ("1.0.0", "1.1.0"):
        (folder / "docs" / "index.md").write_text(f"# What {version} does\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", version)
        git(folder, "tag", f"v{version}")
    return folder


def release_docs(folder, version):
    """Run ``make docs-release`` in a repository."""
    return subprocess.run(
        [sys.executable, folder / "scripts" / "docs_release.py", version],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )


@pytest.mark.slow
def test_each_release_keeps_its_site_and_the_menu_has_all(browser, released, tmp_path):
    if importlib.util.find_spec("mike") is None:
        unavailable("mike isn't installed; 'make docs' installs it")
    for version in ("1.1.0", "1.0.0"):
        done = release_docs(released, version)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "1.1.0 [latest]" in done.stdout
    assert git(released, "status", "--porcelain").stdout == ""
    assert git(released, "worktree", "list").stdout.count("\n") == 1
    git(released, "worktree", "add", "--quiet", str(tmp_path / "pages"), "gh-pages")
    with served(tmp_path / "pages") as address, opened(browser, "wide") as page:
        assert visit(page, f"{address}/index.html") == []
        page.wait_for_url(f"{address}/latest/")
        assert page.locator("h1").inner_text().startswith("What 1.1.0 does")
        page.locator(".md-version__current").hover(force=True)  # its list covers it
        page.locator(".md-version__link", has_text="1.0.0").click()
        page.wait_for_url(f"{address}/1.0.0/**")
        assert page.locator("h1").inner_text().startswith("What 1.0.0 does")


@pytest.mark.slow
def test_a_version_that_was_never_released_has_no_site(released):
    done = release_docs(released, "2.0.0")
    assert done.returncode == 1
    assert "no tag v2.0.0" in done.stderr
    assert "released: 1.0.0, 1.1.0" in done.stderr
