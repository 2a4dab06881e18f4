"""The recipe for Elasticsearch: its mapping takes every record in any order, and Filebeat brings each once.

Elasticsearch itself is not here: `Index` does as much of its dynamic mapping as the template uses.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from fnmatch import fnmatch

import yaml

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import log_run
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
