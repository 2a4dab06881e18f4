"""A dashboard client without a browser: keeps cookies, opens pages over the WebSocket, presses buttons."""

from __future__ import annotations

import contextlib
import http.client
import socket
from urllib.parse import urlsplit

from google.protobuf.message import Message
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

_PATIENCE_S = 60
_XSRF = "_streamlit_xsrf"


class Visitor:
    """One client with its cookies; `name` is the host name it uses for the server."""

    def __init__(self, port, *, name=None, scheme="http", cookies=None):
        self.port = port
        self.name = name or f"localhost:{port}"
        self.scheme = scheme
        self.cookies = dict(cookies or {})

    def get(self, path="/", *, method="GET", body=None, **headers):
        """Return status, headers (names in lower case) and body; cookies are kept as a browser would."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        with contextlib.closing(connection):
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers={"Host": self.name, **self._cookie(), **sent})
            answer = connection.getresponse()
            self._keep(answer.headers.get_all("set-cookie") or ())
            return (
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )

    def come_in(self, address):
        """Open the address that the dashboard printed, as a browser does: token, cookie, on to the page."""
        parts = urlsplit(address)
        status, headers, _ = self.get(f"{parts.path or '/'}?{parts.query}")
        assert status == 303, status
        return self.get(headers["location"])[0]

    def knock(self, *, origin=None, **headers):
        """Ask for the pages' WebSocket and return the status; 101 means it was granted."""
        try:
            with self._connect(origin, headers):
                return 101
        except InvalidStatus as refusal:
            return refusal.response.status_code

    @contextlib.contextmanager
    def tab(self, *, session=None):
        """Open a tab; it stays for as long as the block. `session` asks to resume an earlier tab."""
        if _XSRF not in self.cookies:
            self.get("/_stcore/health")
        with self._connect(None, {}, session=session) as connection:
            yield Tab(connection)

    def _connect(self, origin, headers, *, session=None):
        protocols = ["streamlit", self.cookies.get(_XSRF, "none")] + ([session] if session else [])
        return connect(
            f"ws://{self.name}/_stcore/stream",
            # Whatever the name, the server of this machine is meant.
            sock=socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_S),
            origin=origin or f"{self.scheme}://{self.name}",
            subprotocols=protocols,
            additional_headers={
                **self._cookie(),
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
            max_size=None,
            open_timeout=_PATIENCE_S,
        )

    def _cookie(self):
        pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": pairs} if pairs else {}

    def _keep(self, set_cookies):
        for line in set_cookies:
            pair, _, attributes = line.partition(";")
            name, _, value = pair.partition("=")
            if "max-age=0" in attributes.lower() or value in ("", '""'):
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value


class Tab:
    """One page in one tab."""

    def __init__(self, connection):
        self._connection = connection
        self.messages = []
        self.session = None

    def open(self, page="", query="", *, states=(), fragment=""):
        """Run the page as a browser does that shows it, with `states` of its widgets; return this tab."""
        wish = BackMsg()
        wish.rerun_script.query_string = query
        wish.rerun_script.page_name = page
        wish.rerun_script.fragment_id = fragment
        for state in states:
            wish.rerun_script.widget_states.widgets.add(**state)
        return self.send(wish)

    def send(self, wish):
        self._connection.send(wish.SerializeToString())
        self.messages = []
        while True:
            message = ForwardMsg.FromString(self._connection.recv(timeout=_PATIENCE_S))
            self.messages.append(message)
            kind = message.WhichOneof("type")
            if kind == "new_session":
                self.session = message.new_session.initialize.session_id
            # A rerun that the script asked for itself ends with another code.
            if kind == "script_finished" and message.script_finished in (0, 3):
                return self

    def say(self, anything):
        """Send `anything`, and return what comes back until the server hangs up."""
        parts = []
        with contextlib.suppress(ConnectionClosed):
            self._connection.send(anything)
            while True:
                parts.append(self._connection.recv(timeout=_PATIENCE_S))
        return b"".join(parts)

    @property
    def elements(self):
        """Every element, new ones in place of those that a rerun drew before."""
        return [
            message.delta.new_element
            for message in self.messages
            if message.WhichOneof("type") == "delta" and message.delta.WhichOneof("type") == "new_element"
        ]

    @property
    def text(self):
        """Everything that the page says, labels and options among it."""
        return "\n".join(text for message in self.messages for text in _texts(message))

    def buttons(self):
        """The ids of the buttons by their labels."""
        return {
            getattr(element, kind).label: getattr(element, kind).id
            for element in self.elements
            if (kind := element.WhichOneof("type")) == "button"
        }

    def field(self, label):
        """The id of the text field with this label."""
        return next(item.text_input.id for item in self.elements if item.text_input.label == label)

    def components(self):
        """The ids of the components of our own."""
        found = [element for element in self.elements if element.WhichOneof("type") == "bidi_component"]
        return [element.bidi_component.id for element in found]

    def redirect(self):
        """Where the page sends the browser to log in or out, if it does."""
        return next(
            (item.auth_redirect.url for item in self.messages if item.WhichOneof("type") == "auth_redirect"),
            None,
        )


def pressed(widget):
    """The state of a button when it is pressed."""
    return {"id": widget, "trigger_value": True}


def typed(widget, text):
    """The state of a text field into which `text` was typed."""
    return {"id": widget, "string_value": text}


def _texts(message):
    for field, value in message.ListFields():
        for item in value if not isinstance(value, (str, bytes, Message, int, float)) else (value,):
            if isinstance(item, Message):
                yield from _texts(item)
            elif isinstance(item, str) and field.name not in ("id", "hash"):
                yield item
