"""A collector of OpenTelemetry on this machine: what it has taken, decoded by OpenTelemetry's own definitions."""

from __future__ import annotations

from contextlib import contextmanager

from tests.mirrors.messages.local_receivers import receiving


class Collector:
    """A receiver of requests of one kind; it never takes one that contains `poison`."""

    def __init__(self, receiver, request):
        self.url = receiver.url
        self._receiver = receiver
        self._request = request

    @property
    def taken(self):
        return [got for got in self._receiver.got if got.status == 200]

    @property
    def requests(self):
        return [self._request.FromString(got.body) for got in self.taken]


@contextmanager
def collecting(request, *statuses, body=b"", port=0):
    """Yield a collector that answers with `statuses` before it takes anything, and then with `body`."""

    def usual(got):
        return (400, {}, b"") if b"poison" in got.body else body

    answers = [(status, {}, b"") for status in statuses]
    with receiving(*answers, usual=usual, port=port) as receiver:
        yield Collector(receiver, request)


def attributes(of):
    """Return the attributes of a message as plain values."""

    def plain(value):
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(item) for item in value.array_value.values]
        return getattr(value, kind)

    return {item.key: plain(item.value) for item in of.attributes}
