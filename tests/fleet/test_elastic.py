"""The recipe for Elasticsearch: its mapping takes every record in any order, and Filebeat brings each once.

Elasticsearch itself is not here: `Index` does as much of its dynamic mapping as the template uses, and `StandIn`
answers Filebeat as much of its HTTP as that asks for.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import append, log_run, make_run
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.reader import parse_line

TAILERS = ROOT / "config" / "tailers"
TEMPLATE = json.loads((TAILERS / "elastic_template.json").read_text())["template"]
FILEBEAT = yaml.safe_load((TAILERS / "filebeat.yml").read_text())
KINDS = ((bool, "boolean"), (int, "long"), (float, "double"), (str, "string"), (dict, "object"))


class Index:
    """The fields of an index and their types."""

    def __init__(self):
        self.fields = dict(TEMPLATE["mappings"]["properties"]["record"]["properties"])

    def add(self, record):
        """Take a document's record; fail where Elasticsearch would reject the document."""
        for name, value in record.items():
            for one in leaves(value):
                mapping = self.fields.setdefault(name, dynamic(f"record.{name}", one))
                if mapping.get("enabled") is False:
                    continue
                is_number = mapping["type"] == "double"
                assert isinstance(one, dict) == (mapping["type"] in ("object", "flattened")), (name, one)
                assert not is_number or mapping["ignore_malformed"]


def leaves(value):
    """Yield the values of a field: those of a list are values of it too, and null has no value."""
    if isinstance(value, list):
        for one in value:
            yield from leaves(one)
    elif value is not None:
        yield value


def dynamic(path, value):
    """Return the mapping of a field that is new, by the first template that matches."""
    kind = next(name for of, name in KINDS if isinstance(value, of))
    for template in TEMPLATE["mappings"]["dynamic_templates"]:
        [rule] = template.values()
        if rule["match_mapping_type"] == kind and fnmatch(path, rule.get("path_match", "*")):
            return rule["mapping"]
    raise AssertionError(f"no template for {kind}")


def every_kind_of_record(tmp_path):
    """Return the records of all fixtures, and of a run that logs all that can be logged."""
    with TelemetryLogger("all", log_dir=tmp_path, log_every=1) as log:
        log.log_start(config={"lr": 1e-4, "deep": {"list": [1, "a", {"b": None}]}})
        for step in range(3):
            log.log_step(step, train_loss=float("nan") if step == 1 else 0.5, lr=1e-4, flag=True, note="text")
        log.log({"nested": {"loss": 1, "text": "x"}, "count": 3})
        log.log_eval(3, val_loss=1)
        log.log_checkpoint(3, "last.pt")
        log.log_sample(3, "a.png", prompt="a cat")
        log.log_completion(3, "why?", "because", reward=1)
        log.log_completion(3, [{"role": "user", "content": "why?"}], chosen="yes", rejected=[{"a": 1}])
        log.log_table("table", [[1, "a"]], columns=["n", "text"])
        log.log_histogram("weights", [0.0, 1.0, float("inf")])
        log.log_event("odd", it=object(), some={"inner": [1, 2]}, label="text")
        with suppress(RuntimeError), log.span("save", path="x"):
            raise RuntimeError("no room")
    files = [folder / "metrics.jsonl" for folder in (log.run_folder, log_run(tmp_path, "resumed"))]
    for path in (*files, *sorted((ROOT / "tests").rglob("*.jsonl"))):
        for line in path.read_bytes().splitlines():
            record = parse_line(0, line) if line else None
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                yield record


def test_every_field_has_one_type_whatever_record_comes_first(tmp_path):
    records = list(every_kind_of_record(tmp_path))
    kinds = {record["event"] for record in records}
    assert kinds >= {"start", "step", "eval", "sample", "completion", "table", "histogram", "span", "error"}

    forward, backward = Index(), Index()
    for record in records:
        forward.add(record)
    for record in reversed(records):
        backward.add(record)

    assert forward.fields == backward.fields
    assert len(forward.fields) > 100


def test_logstash_sends_what_filebeat_sends_under_the_same_names():
    text = re.sub(r"#.*", "", (TAILERS / "logstash.conf").read_text())

    assert re.findall(r"^(\w+) \{", text, re.MULTILINE) == ["input", "filter", "output"]
    assert text.count("{") == text.count("}")
    assert re.search(r"index => \"(.*)\"", text)[1] == FILEBEAT["output.elasticsearch"]["index"]
    [fingerprint] = [one["fingerprint"] for one in FILEBEAT["processors"] if "fingerprint" in one]
    assert fingerprint["fields"] == ["file", "record.session", "record.seq"]
    assert fingerprint["target_field"] == "@metadata._id"
    assert 'document_id => "%{[@metadata][_id]}"' in text


class StandIn(ThreadingHTTPServer):
    """Answers as much as Filebeat asks of Elasticsearch, and keeps the documents by their ids."""

    def __init__(self):
        documents = self.documents = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                version = {"number": "8.1.3", "build_flavor": "default"}
                lic = {"status": "active", "type": "basic", "mode": "basic", "uid": "x"}
                self.answer({"version": version, "tagline": "You Know, for Search", "license": lic})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                lines = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                rows = [json.loads(line) for line in lines.splitlines()]
                items = []
                for action, document in zip(rows[::2], rows[1::2], strict=True):
                    where = action["create"]
                    key = where["_index"], where["_id"]
                    items.append({"create": {"status": 409 if key in documents else 201}})
                    documents.setdefault(key, document)
                self.answer({"took": 1, "errors": False, "items": items})

            def answer(self, content):
                data = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        # A client that is killed resets its connection.
        self.handle_error = lambda *_: None
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_filebeat_brings_every_record_once_across_a_kill(tmp_path, logs):
    filebeat = shutil.which("filebeat")
    if filebeat is None:
        pytest.skip("filebeat is not here, and no package of Debian's has it")
    elastic = StandIn()
    text = (TAILERS / "filebeat.yml").read_text().replace("/scratch/logs", str(logs))
    text = text.replace("https://elastic.example:9200", f"http://127.0.0.1:{elastic.server_port}")
    (tmp_path / "filebeat.yml").write_text(text)
    (tmp_path / "filebeat.yml").chmod(0o600)
    command = [
        filebeat,
        "-c",
        tmp_path / "filebeat.yml",
        "--path.home",
        tmp_path,
        "--path.data",
        tmp_path / "data",
    ]
    folder = make_run(logs, "run", 0)
    append(folder, range(20))
    append(folder, range(3), rank=1)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"no record\n")
    expected = {(0, seq) for seq in range(20)} | {(1, seq) for seq in range(3)}
    started = None
    try:
        for number in (signal.SIGKILL, signal.SIGTERM):
            started = subprocess.Popen(command, env={"ELASTIC_API_KEY": "id:key"}, stderr=subprocess.DEVNULL)
            wait_until(lambda: len(elastic.documents) == len(expected), started)  # noqa: B023
            started.send_signal(number)
            started.wait()
            if number == signal.SIGKILL:
                append(folder, range(20, 30))
                expected |= {(0, seq) for seq in range(20, 30)}
    finally:
        if started is not None:
            started.kill()
            started.wait()
        elastic.shutdown()
        elastic.server_close()

    found = {(one["record"].get("rank", 0), one["record"]["seq"]) for one in elastic.documents.values()}
    assert found == expected
    places = {(index, one["run"], one["@timestamp"][:7]) for (index, _), one in elastic.documents.items()}
    assert places == {("telemetry-records-2026.09", "run", "2026-09")}
