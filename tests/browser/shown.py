"""A page as somebody sees it: read by its words and roles, moved by mouse and keys."""

import re
from urllib.parse import parse_qs, urlsplit

from tests.waiting import PATIENCE_S

PATIENCE_MS = round(1000 * PATIENCE_S)
LOOK_MS = 25


class Shown:
    """One open page, with everything that it asked for and complained of."""

    def __init__(self, context, link, *, place=""):
        self.link = urlsplit(link)
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.asked = []
        self.complaints = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("websocket", lambda socket: self.asked.append(socket.url))
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(link)
        if place:
            self.go(place)

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def strangers(self):
        """Whom it asked beside its own server."""
        own = f"{self.link.scheme}://{self.link.netloc}/"
        return [one for one in self.asked if not one.startswith(own)]

    def go(self, place):
        """Another address of the page, as from a link."""
        self.page.evaluate("place => { location.hash = place; }", place)

    @property
    def address(self):
        found = parse_qs(urlsplit(self.page.url).fragment)
        return {name: values[0] for name, values in found.items()}

    @property
    def at(self):
        """The moment that the address names; None where the end is followed."""
        return float(self.address["at"]) if "at" in self.address else None

    def wait(self, expected, read):
        """Looks until `read` gives what is expected; what it gave last, if it never does."""
        for _ in range(PATIENCE_MS // LOOK_MS):
            if read() == expected:
                return
            self.page.wait_for_timeout(LOOK_MS)
        assert expected == read()

    def wait_until(self, holds):
        for _ in range(PATIENCE_MS // LOOK_MS):
            if holds():
                return
            self.page.wait_for_timeout(LOOK_MS)
        assert holds()

    # A run at a moment

    def tiles(self, run=0):
        """What stands in the tiles: by name the number and the remark."""
        script = """run => Object.fromEntries(
            [...(document.querySelectorAll(".run-moment")[run]
                ?.querySelectorAll(".tiles > div") ?? [])].map((one) => [
                one.querySelector("dt").textContent,
                [one.querySelector("strong").textContent,
                 one.querySelector(".note")?.textContent ?? ""],
            ]))"""
        found = self.page.evaluate(script, run)
        if not found:
            return {}
        return {
            "step": found["step"][0],
            "published": found["step"][1].split(",")[0],
            "waterlevel": found["waterlevel"][0].split(" of ")[0],
            "executions": found["executions"][0],
            "dispatched": found["executions"][1],
            "groups": found["groups"][0],
            "batch": found["batch"][0],
        }

    def cells(self, run=0):
        """What the cells do, by their number."""
        script = """run => [...(document.querySelectorAll(".run-moment")[run]
            ?.querySelectorAll(".cells > li") ?? [])].map((one) => [
            one.querySelector("strong").textContent, one.querySelector(".state").textContent])"""
        found = self.page.evaluate(script, run)
        named = [(re.match(r"cell (\d+)", name), state) for name, state in found]
        return {int(name[1]): state for name, state in named if name}

    def badge(self, run=0):
        return self.page.locator(".run-moment h2 .badge").nth(run).text_content()

    @property
    def slider(self):
        return self.page.get_by_role("slider", name="Moment of the run")

    # Panels

    def panel(self, name):
        """The panel, scrolled to and filled."""
        found = self.page.locator(f'[data-panel="{name}"]')
        found.scroll_into_view_if_needed()
        found.locator(".panel-body > *").first.wait_for(state="attached")
        return found

    def plot(self, panel, title, run=0):
        return self.panel(panel).get_by_role("figure", name=title, exact=True).nth(run)

    def table(self, panel, title, run=0):
        """Head and rows of the table behind a plot, as texts; it is opened for that."""
        script = """plot => {
            const behind = plot.querySelector("details.behind");
            behind.open = true;
            const rows = behind.querySelectorAll("tr");
            return [...rows].map((row) => [...row.children].map((one) => one.textContent));
        }"""
        # A panel that gets another run makes its figures anew.
        rows = []
        self.wait_until(lambda: rows.extend(self.plot(panel, title, run).evaluate(script)) or rows)
        return rows[0], rows[1:]

    def read_plot(self, panel, title, run=0, most=1000):
        """What a plot says under the cursor, place by place from its right end on."""
        plot = self.plot(panel, title, run)
        drawing = plot.locator(".drawing")
        readout = plot.locator("output.readout")
        drawing.focus()
        said = []
        for key in ("End", *["ArrowLeft"] * (most - 1)):
            drawing.press(key)
            self.settle()
            text = readout.text_content()
            if said and said[-1] == text:
                break
            said.append(text)
        drawing.press("Escape")
        return said

    def settle(self):
        """What was asked for has been drawn: two frames have passed."""
        script = """() => new Promise((done) => requestAnimationFrame(
            () => requestAnimationFrame(done)))"""
        self.page.evaluate(script)

    def swatches(self, plot):
        """Colours of a plot's legend by name, as r, g, b."""
        script = """plot => Object.fromEntries(
            [...plot.querySelectorAll(".legend li")].map((one) => [
                one.textContent,
                getComputedStyle(one.querySelector(".swatch")).backgroundColor
                    .match(/\\d+/g).slice(0, 3).map(Number)]))"""
        return plot.evaluate(script)

    def column(self, plot, x):
        """Colours of the rows of a timeline at a pixel, from the top."""
        script = """([frame, x]) => {
            const canvas = frame.querySelector("canvas.base");
            const ratio = canvas.width / frame.clientWidth;
            const copy = new OffscreenCanvas(1, canvas.height);
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, -Math.round(x * ratio), 0);
            const found = [];
            for (let y = 13; y < frame.clientHeight - 24; y += 22)
                found.push([...context.getImageData(0, y * ratio, 1, 1).data].slice(0, 3));
            return found;
        }"""
        return self.page.evaluate(script, [plot.locator(".drawing").element_handle(), x])

    # Executions and trees

    def listed(self):
        return self.page.locator(".executions [role=status]").text_content()

    def boxes(self):
        """Rows of the table of a tree's boxes, by the names of their columns."""
        behind = self.page.locator(".tree-pane details.behind")
        if behind.get_attribute("open") is None:
            behind.locator("summary").click()
        behind.locator("table").wait_for()
        head, rows = rows_of(behind.locator("table"))
        return [dict(zip(head, row, strict=True)) for row in rows]

    def choose(self, box):
        """A box is clicked, and its calls are being read."""
        found = self.page.locator(f'[role=treeitem][data-box="{box}"]')
        found.click()
        self.wait("true", lambda: found.get_attribute("aria-selected"))

    def section(self, call):
        """What the reader shows of a call, once it is there."""
        section = self.page.get_by_role("region", name=f"Call {call}", exact=True)
        section.scroll_into_view_if_needed()
        section.locator(".reply").wait_for()
        return section

    def told(self, call):
        """[who, text] of every message that was new in a call."""
        script = """all => all.map((one) => [
            one.querySelector("h5").firstChild.textContent,
            one.querySelector(".text").textContent])"""
        return self.section(call).locator(".message:not(.reply)").evaluate_all(script)

    def tokens(self, call):
        """(id, log-probability, version) of every token of a reply, read out key by key."""
        box = self.section(call).get_by_role("group", name="Tokens of the reply")
        readout = self.page.locator(".reader output.readout")
        found = []
        box.focus()
        for _ in range(box.locator(".tok").count()):
            box.press("ArrowRight")
            said = readout.text_content()
            parts = re.search(r", id (\d+), log-probability (\S+) .*, version (\d+)", said)
            assert parts is not None, said
            found.append((int(parts[1]), number(parts[2]), int(parts[3])))
        return found


def rows_of(table):
    script = """table => [...table.querySelectorAll("tr")].map(
        (row) => [...row.children].map((one) => one.textContent))"""
    head, *rows = table.evaluate(script)
    return head, rows


def seconds(text):
    """What `2 h 5 min`, `3.4 s` and `12 ms` mean; None of a dash."""
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 0.001}
    if text == "–":
        return None
    parts = re.findall(r"([\d.,e-]+) (d|h|min|ms|s)\b", text)
    return sum(float(number.replace(",", "")) * units[unit] for number, unit in parts)


def number(text):
    """Of a cell of a table; None of a dash."""
    return None if text == "–" else float(text.replace(",", "").replace("−", "-"))


def calls_in(text):
    """The calls of a box, from what its row says of them: 3, 3–9, or none of a preface."""
    if text == "preface":
        return []
    first, _, last = text.partition("–")
    return list(range(int(first), int(last or first) + 1))
