"""What a browser does with a page of hostile text: what became of it, and whom it asked."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.attacks.hostile_runs import RAN, WORDS_OF_MARKUP

# What a page is made of besides what we and Streamlit put there.
MADE_OF_DATA = """words => {
    const found = [], own = location.origin;
    const say = (what, element) => found.push(what + ": " + element.outerHTML.slice(0, 300));
    const elsewhere = (address) => {
        try {
            const url = new URL(address, location.href);
            return url.origin !== own && !["data:", "blob:"].includes(url.protocol);
        } catch { return true; }
    };
    for (const element of document.querySelectorAll("*")) {
        const name = element.localName;
        if (["iframe", "object", "embed", "base", "marquee"].includes(name)) say("a stranger's element", element);
        if (name === "meta" && element.httpEquiv === "refresh") say("leads away", element);
        if (element.hasAttribute("data-pwn")) say("made of data", element);
        for (const { name: attribute, value } of element.attributes) {
            if (/^on/i.test(attribute)) say("a handler", element);
            if (/^(href|src|srcset|action|poster|xlink:href)$/i.test(attribute) && value && elsewhere(value)) {
                say("an address of another site", element);
            }
            if (attribute === "style" && /url\\(|pwn/i.test(value) && !/url\\("?(data:|blob:|#)/.test(value)) {
                say("a style", element);
            }
        }
        if (name === "script" && /pwn\\(/.test(element.textContent)) say("a script", element);
        // Notes may have code and quotes, and headings, lists and words in bold, which is no other element.
        const isInNotes = element.closest(".st-key-notes_as_markdown :is(blockquote, li, strong, em, code)");
        if (element.matches(".katex, [data-testid='stMarkdownContainer'] :is(table, blockquote, img, pre)")
            && !element.closest(".st-key-notes_as_markdown :is(pre, blockquote)")) say("formatted", element);
        if (element.matches('[data-testid="stIconMaterial"]') && element.textContent === "skull") say("icon", element);
        // Code is coloured word by word, and a comparison marks single words.
        if (!element.childElementCount && words.includes(element.textContent.trim())
            && !isInNotes && !element.closest("pre, .telemetry-side-text, option")) say("formatted", element);
    }
    const text = document.body.innerText;
    if (text.includes("\\u{1F604}")) found.push("an emoji of a shortcode");
    if (/[\\u202a-\\u202e\\u2066-\\u2069]/.test(text)) found.push("text that runs backwards");
    if (text.includes("5332114")) found.push("a template was worked out");
    return found;
}"""
_BROKEN = """() => [...document.querySelectorAll(
        '[data-testid="stException"], [data-testid="stAlert"], .telemetry-chart, .telemetry-curves')]
    .map(element => element.innerText)
    .filter(text => /could not be drawn|Traceback|Error:|exception/i.test(text))"""
WIDTH = """() => Math.max(document.scrollingElement.scrollWidth,
    ...[...document.querySelectorAll('[data-testid="stMain"], [data-testid="stSidebarContent"]')]
        .filter(part => part.getBoundingClientRect().right > 0)
        .map(part => part.scrollWidth - part.clientWidth + innerWidth))"""
_LONGEST = """() => {
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let longest = 0, where = "";
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        if (node.parentElement.closest("pre, textarea, script, style, canvas, .telemetry-side-text")) continue;
        if (node.data.length > longest) { longest = node.data.length; where = node.data.slice(0, 80); }
    }
    return [longest, where];
}"""
DRAWN = """() => [...document.querySelectorAll(".telemetry-chart, .telemetry-curves")].every(div => {
    const box = div.getBoundingClientRect();
    const inSight = box.width > 0 && box.top < innerHeight && box.bottom > 0;
    return !inSight || div.dataset.drawn || div.textContent.includes("could not");
})"""


class Beacon:
    """The web server of another site, which notes what it is asked for."""

    def __init__(self):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>a stranger</title><body></body>")

            do_POST = do_HEAD = do_OPTIONS = do_GET

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.place = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Looked:
    """What a browser did while pages were open in it, and how many there were."""

    def __init__(self, page, shown, beacon):
        self.page, self.shown, self.beacon = page, shown, beacon
        self.pages = 0
        self.asked, self.trouble = [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", lambda socket: self.asked.append(socket.url))
        page.on("pageerror", lambda error: self.trouble.append(f"script error: {error}"))
        page.on("dialog", lambda dialog: (self.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.trouble.append(f"a window: {popup.url}"))
        page.on("console", self._hear)

    def _hear(self, message):
        if "Content Security Policy" in message.text:
            self.trouble.append(message.text)

    def check(self, where):
        """Assert that the page is whole, and that nothing of a run has become more than text."""
        page = self.page
        page.wait_for_function(DRAWN)
        self.pages += 1
        assert page.evaluate(RAN) == [], where
        made = page.evaluate(MADE_OF_DATA, WORDS_OF_MARKUP)
        assert made == [], (where, made)
        assert page.evaluate(_BROKEN) == [], where
        longest, text = page.evaluate(_LONGEST)
        assert longest < 6_000, (where, text)
        # What a chart or a table draws follows the window a little later.
        page.wait_for_function(f"most => ({WIDTH})() <= most", arg=page.viewport_size["width"] + 1)
        self.check_traffic(where)

    def check_traffic(self, where=""):
        port = self.shown.port
        foreign = [
            url
            for url in self.asked
            if (parts := urlsplit(url)).scheme not in ("data", "blob", "about")
            and (parts.hostname, parts.port) not in (("localhost", port), ("127.0.0.1", port))
        ]
        assert foreign == [], where
        assert self.beacon.asked == [], where
        assert self.trouble == [], where
