"""Sends messages to forbidden addresses and over redirects, and prints what arrived at a machine inside.

python aim_webhooks_inside.py LOG_DIR ADDRESSES
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from tests.mirrors.messages.local_receivers import receiving
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.outbox import Outbox
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.mirrors.messages.options import MOST_RECEIVERS, MessageOptions

ours, reached, looked_up = ("127.0.0.1", "::1", "::ffff:127.0.0.1"), [], {}


def watch(event, arguments):
    if event == "socket.connect":
        where = arguments[1][0]
        reached.append(where)
        if where not in ours:
            raise ConnectionRefusedError("no one is there")


names = {
    "private": ["10.0.0.7"],
    "mapped": ["::ffff:127.0.0.1"],
    "metadata": ["169.254.169.254"],
    "localhost": ["127.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "both": ["127.0.0.1", "93.184.216.34"],
    "hooks": ["93.184.216.34"],
}
real = socket.getaddrinfo


def look_up(host, port, *rest, **more):
    if not str(host).endswith(".evil.test"):
        return real(host, port, *rest, **more)
    looked_up[host] = looked_up.get(host, 0) + 1
    name = host.removesuffix(".evil.test")
    # Public for whoever checks, private for whoever comes back.
    found = names.get(name) or (["93.184.216.34"] if looked_up[host] == 1 else ["127.0.0.1"])
    family = {True: socket.AF_INET6, False: socket.AF_INET}
    return [(family[":" in ip], socket.SOCK_STREAM, 6, "", (ip, port)) for ip in found]


socket.getaddrinfo = look_up
sys.addaudithook(watch)
# All attempts are made at once: each run would wait for those of its receivers that no one answers.
Outbox.__init__.__kwdefaults__["first_pause_s"] = 0.0
place = Path(sys.argv[1])
refused = sent = 0
with receiving() as victim, receiving() as redirecting:
    to = {"Location": f"{victim.url}/stolen"}
    redirecting.answers[:] = [(status, to, b"") for status in (301, 302, 303, 307, 308)]
    addresses = [one.format(port=victim.port) for one in json.loads(sys.argv[2])]
    receivers = []
    for url in addresses:
        block = {"to": "webhook", "url": url, "when": ["start"]}
        try:
            MessageOptions.from_block("messages", [block])
        except OptionsError:
            refused += 1
        else:
            receivers.append(block)
    for number in range(0, len(receivers), MOST_RECEIVERS):
        log = TelemetryLogger(
            f"r{number}",
            log_dir=place,
            system=False,
            csv=False,
            control=False,
            messages=receivers[number : number + MOST_RECEIVERS],
        )
        log.log_start()
        sent += len(log._options.message_options)
        log.flush()
        log.close()
    connected = sum(where in ours for where in reached)
    for number in range(5):
        log = TelemetryLogger(
            f"redirected{number}",
            log_dir=place,
            system=False,
            csv=False,
            control=False,
            messages=[{"to": "webhook", "url": f"{redirecting.url}/", "when": ["start"]}],
        )
        log.log_start()
        log.flush()
        wait_until(lambda upto=number: len(redirecting.got) > upto)
        log.close()
    print(
        json.dumps(
            {
                "connected": connected,
                "victim": len(victim.got),
                "refused": refused,
                "sent": sent,
                "redirecting": len(redirecting.got),
            }
        )
    )
