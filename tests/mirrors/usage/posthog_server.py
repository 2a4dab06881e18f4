"""What arrives at a PostHog server on this machine, and runs that report to it."""

from __future__ import annotations

import gzip
import json

KEY = "phc_made0up1for2the3tests4only5678901234567890"
KEY_ENV = "USAGE_KEY_OF_THE_TESTS"


def bodies(receiver):
    """Return each request's body, decoded as its headers say."""
    decoded = []
    for got in receiver.got:
        headers = {name.lower(): value for name, value in got.headers.items()}
        decoded.append(gzip.decompress(got.body) if headers.get("content-encoding") == "gzip" else got.body)
    return decoded


def arrived(receiver):
    """Return the events in the order in which they arrived."""
    return [event for body in bodies(receiver) for event in json.loads(body)["batch"]]


def names(receiver):
    return [event["event"] for event in arrived(receiver)]


def all_bytes(receiver):
    """Return everything that arrived, for whoever looks for something that must not be there."""
    return b"\n".join([*(got.bytes for got in receiver.got), *bodies(receiver)])


def reporting_to(url, **more):
    """Return the options of a run that reports to `url`."""
    return {"usage_reports": {"host": url, "key_env": KEY_ENV, **more}}
