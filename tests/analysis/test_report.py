"""The HTML report in a real browser, and figures."""

import re
import shutil

import pytest

import olla_xla
from examples.zoo import load
from tests.support.steps import plan

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT = 5_000_000  # bytes of a report
READY = 60_000  # milliseconds; far more than it takes, for machines that do other things

PLACE = """([order, k]) => {
  const plot = olla.document.get_model_by_name(`addresses-${order}`);
  const view = Bokeh.index.find_one(plot), box = view.el.getBoundingClientRect();
  const c = olla.columns, MB = 2 ** 20;
  const x = view.frame.x_scale.compute((c.start[k] + c.stop[k]) / 2);
  const y = view.frame.y_scale.compute((c.offset[k] + c.bytes[k] / 2) / MB);
  return [box.x + x, box.y + y];
}"""
"""Where on the screen the middle of a tensor's rectangle is."""


@pytest.fixture(scope="module")
def analysis():
    step, arguments, options = load("lenet")(batch_size=16, optimizer="momentum")
    planned = plan(step, **{**options, "step_limit": 2000})
    return olla_xla.analyze(planned, *arguments, title="a <small> step")


@pytest.fixture(scope="module")
def page(analysis, tmp_path_factory):
    """The report in a browser, and all that it said."""
    api = pytest.importorskip("playwright.sync_api", reason="install playwright")
    if BROWSER is None:
        pytest.skip("no chromium here; .ci/run installs it")
    path = tmp_path_factory.mktemp("report") / "report.html"
    analysis.html(path)
    with api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=BROWSER, args=flags)
        page = browser.new_page(viewport={"width": 1400, "height": 1400})
        page.said = []
        page.on("console", lambda message: page.said.append((message.type, message.text)))
        page.on("pageerror", lambda error: page.said.append(("error", str(error))))
        page.on("request", lambda request: page.said.append(("request", request.url)))
        page.goto(f"file://{path}")
        page.wait_for_selector("body[data-ready=true]", timeout=READY)
        yield page
        browser.close()


def largest(analysis, where):
    """Name and number of the largest tensor of the planned order that holds."""
    memory = analysis.planned._occupancy
    tall = memory.bytes * (memory.stop > memory.start + 3)
    found = [k for k in tall.argsort()[::-1].tolist() if where(memory.values[k])]
    return memory.values[found[0]].name, found[0]


def test_it_is_one_file_that_fetches_nothing(analysis, tmp_path):
    path = tmp_path / "report.html"
    analysis.html(path)
    text = path.read_text()
    assert len(text) < LIMIT and "a &lt;small&gt; step" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?:", text)
    assert not re.search(r"@[A-Z]+@", text)
    with pytest.raises(olla_xla.InputError, match="cannot write"):
        analysis.html(tmp_path / "none" / "report.html")


def test_a_step_that_takes_nothing_has_a_report(tmp_path):
    olla_xla.analyze(lambda: None).html(tmp_path / "none.html")
    assert "0.00 MB" in (tmp_path / "none.html").read_text()


def test_pointing_shows_the_tensor(page, analysis):
    name, k = largest(analysis, lambda v: v.instruction.opcode != "parameter")
    page.mouse.move(*page.evaluate(PLACE, [1, k]))
    page.wait_for_selector(f'#card[data-tensor="{name}"]', timeout=READY)
    card = page.inner_text("#card")
    assert "zoo/" in card and "MB" in card
    page.mouse.click(*page.evaluate(PLACE, [1, k]))
    page.wait_for_selector("#card h4", timeout=READY)
    assert "read for" in page.inner_text("#card")
    page.keyboard.press("Escape")


def test_search_narrows(page, analysis):
    everything = page.locator("#tensors tbody tr").count()
    page.keyboard.press("/")
    page.keyboard.type("opt_state kernel")
    page.wait_for_function("document.getElementById('found').textContent", timeout=READY)
    rows = page.locator("#tensors tbody tr").all_inner_texts()
    assert 0 < len(rows) and all("opt_state" in row and "kernel" in row for row in rows)
    count = int(page.inner_text("#found").split()[0])
    assert count == len(rows) < len(analysis.planned._occupancy.values)
    page.keyboard.press("Escape")
    page.wait_for_function("!document.getElementById('found').textContent", timeout=READY)
    assert page.locator("#tensors tbody tr").count() == everything


def test_orders_theme_and_keys(page, analysis):
    assert f"step {analysis.planned.step}, the peak" in page.inner_text("#table-title")
    page.click("#order-0")
    assert f"step {analysis.xla.step}, the peak" in page.inner_text("#table-title")
    page.keyboard.press("o")
    assert page.get_attribute("#order-1", "aria-pressed") == "true"
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.keyboard.press("t")
    assert page.evaluate(ground) != before
    shown = "olla.document.get_model_by_name('steps-1')"
    width = f"{shown}.end - {shown}.start"
    whole = page.evaluate(width)
    page.keyboard.press("+")
    assert page.evaluate(width) < whole
    page.keyboard.press("0")
    assert page.evaluate(width) == whole


def rows_of(page, name):
    return page.locator(f"#{name} tbody tr").all_inner_texts()


def test_columns_sort(page):
    page.keyboard.press("Escape")
    sizes = [float(row.split("\t")[0].replace(",", "")) for row in rows_of(page, "tensors")]
    assert sizes == sorted(sizes, reverse=True)
    page.click("#tensors th:nth-child(3)")
    whats = [row.split("\t")[2] for row in rows_of(page, "tensors")]
    key = "(a) => [...a].sort((x, y) => String(x).localeCompare(y))"
    assert whats == page.evaluate(key, whats) and len(set(whats)) > 3
    page.click("#tensors th:nth-child(3)")
    assert [row.split("\t")[2] for row in rows_of(page, "tensors")] != whats
    page.click("#tensors th:nth-child(1)")


def test_the_legend_filters(page):
    everything = rows_of(page, "tensors")
    page.click("#categories tr:has-text('optimizer state')")
    found = rows_of(page, "tensors")
    assert 0 < len(found) < len(everything) and all("optimizer state" in row for row in found)
    assert page.locator("#categories tr.only").count() == 1
    page.click("#categories tr:has-text('optimizer state')")
    assert rows_of(page, "tensors") == everything


def test_sums_by_module_and_by_line_add_up(page):
    for name in ("modules", "lines"):
        shares = [float(row.split("\t")[1]) for row in rows_of(page, name)]
        assert len(shares) > 3 and abs(sum(shares) - 100) < 0.1 * len(shares)
    page.click("#lines tbody tr:has-text('lenet.py')")
    assert page.input_value("#search").startswith("examples/zoo/lenet.py:")
    page.keyboard.press("Escape")


def test_more_rows(page):
    rows = "Array.from({length: 450}, (_, k) => [k, [k, 'a']])"
    page.evaluate(f"fill('loops', ['MB', 'what'], {rows})")
    assert len(rows_of(page, "loops")) == 200
    page.evaluate("document.querySelector('#loops ~ button.more').click()")
    assert len(rows_of(page, "loops")) == 400
    page.evaluate("document.querySelector('#loops ~ button.more').click()")
    assert len(rows_of(page, "loops")) == 450 and not page.locator("#loops ~ button.more").count()


def test_the_wheel_scrolls_the_page_unless_ctrl_is_held(page):
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(*page.evaluate(PLACE, [1, 0]))
    shown = "olla.document.get_model_by_name('steps-1')"
    width = f"{shown}.end - {shown}.start"
    whole = page.evaluate(width)
    page.mouse.wheel(0, 300)
    page.wait_for_function("scrollY > 0", timeout=READY)
    assert page.evaluate(width) == whole
    page.evaluate("scrollTo(0, 0)")
    page.mouse.move(*page.evaluate(PLACE, [1, 0]))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"{width} < {whole}", timeout=READY)
    page.keyboard.up("Control")
    page.keyboard.press("0")


def test_on_a_telephone_nothing_is_wider_than_the_screen(page):
    page.set_viewport_size({"width": 390, "height": 844})
    # The page is laid out anew a little after that.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    assert not page.locator("#tensors th.secondary").first.is_visible()
    page.set_viewport_size({"width": 1400, "height": 1400})


def test_nothing_went_wrong(page):
    """Last: no error on the console, and nothing was fetched."""
    assert not [text for kind, text in page.said if kind == "error"]
    urls = [text for kind, text in page.said if kind == "request"]
    assert [url for url in urls if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures(analysis, tmp_path, suffix):
    path = tmp_path / f"memory.{suffix}"
    analysis.figure(path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") if suffix == "png" else b"lower bound" in data
    with pytest.raises(olla_xla.InputError, match="must end in"):
        analysis.figure(tmp_path / "memory.gif")
