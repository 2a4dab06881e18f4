"""The index template for Elasticsearch: every field of every kind of record gets one type, whichever comes first.

Elasticsearch itself cannot be had here. `Index` does as much of its dynamic mapping as the template uses.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain

from tests.fleet.engines import ROOT
from tests.fleet.shipped_runs import log_run
from toolkit.runfolder.reader import parse_line
from toolkit.telemetry import TelemetryLogger

TEMPLATE = json.loads((ROOT / "config" / "elastic" / "telemetry_records.json").read_text())
MAPPINGS = TEMPLATE["template"]["mappings"]
KINDS = ((bool, "boolean"), (int, "long"), (float, "double"), (str, "string"), (dict, "object"))


class Rejected(Exception):
    """Elasticsearch would not take the document."""


class Index:
    """The fields of an index and their types."""

    def __init__(self):
        self.fields = dict(MAPPINGS["properties"])

    def add(self, record):
        """Take a document, as Elasticsearch maps it; a dot in a name is an object to it."""
        for name, value in record.items():
            assert "." not in name
            for one in leaves(value):
                mapping = self.fields.setdefault(name, dynamic(one))
                require_accepted(name, mapping, one)


def leaves(value):
    """Return the values of a field: those of a list are values of it too, and null is not one."""
    if isinstance(value, list):
        return list(chain.from_iterable(map(leaves, value)))
    return [] if value is None else [value]


def dynamic(value):
    """Return the mapping of a field that is new, by the first template that matches."""
    kind = next(name for of, name in KINDS if isinstance(value, of))
    for template in MAPPINGS["dynamic_templates"]:
        ((_, rule),) = template.items()
        assert rule.keys() == {"match_mapping_type", "mapping"}
        if rule["match_mapping_type"] == kind:
            return rule["mapping"]
    raise AssertionError(f"no template for {kind}")


def require_accepted(name, mapping, value):
    is_object = isinstance(value, dict)
    if mapping.get("enabled") is False:
        return
    if mapping["type"] == "flattened":
        accepted = is_object
    elif mapping["type"] in ("keyword", "text"):
        accepted = not is_object
    else:
        assert mapping["ignore_malformed"], name
        accepted = not is_object
    if not accepted:
        raise Rejected(f"{name} is {mapping['type']} and {value!r:.80} is not")


def every_kind_of_record(tmp_path):
    """Return the records of all fixtures, and of a run that logs all that can be logged."""
    with TelemetryLogger("all", log_dir=tmp_path, log_every=1) as log:
        log.log_start(config={"lr": 1e-4, "deep": {"list": [1, "a", {"b": None}]}})
        for step in range(3):
            log.log_step(step, train_loss=float("nan") if step == 1 else 0.5, lr=1e-4, flag=True, note="text")
        log.log({"nested": {"loss": 1, "text": "x"}, "count": 3})
        log.log_eval(3, val_loss=1)
        log.log_epoch(1, global_step=3)
        log.log_checkpoint(3, "last.pt")
        log.log_sample(3, "a.png", prompt="a cat")
        log.log_completion(3, "why?", "because", reward=1)
        log.log_completion(3, [{"role": "user", "content": "why?"}], chosen="yes", rejected=[{"a": 1}])
        log.log_table("table", [[1, "a"]], columns=["n", "text"])
        log.log_histogram("weights", [0.0, 1.0, float("inf")])
        log.log_event("odd", it=object(), some={"inner": [1, 2]}, label="text")
        log.summary["best"] = 0.25
        with log.span("evaluate", images=4):
            pass
        with suppress(RuntimeError), log.span("save", path="x"):
            raise RuntimeError("no room")
    folders = [log.run_folder, log_run(tmp_path, "resumed")]
    files = [folder / "metrics.jsonl" for folder in folders]
    files += sorted((ROOT / "tests").rglob("*.jsonl"))
    for path in files:
        at = 0
        for line in path.read_bytes().split(b"\n"):
            record = parse_line(at, line) if line else None
            at += len(line) + 1
            if isinstance(record, dict) and isinstance(record.get("event"), str):
                yield record


def test_every_field_has_one_type_whatever_comes_first(tmp_path):
    records = list(every_kind_of_record(tmp_path))
    kinds = {record["event"] for record in records}
    assert kinds >= {
        "start",
        "step",
        "eval",
        "epoch",
        "checkpoint",
        "sample",
        "completion",
        "table",
        "histogram",
    }
    assert kinds >= {"summary", "span", "error", "end", "lost", "system", "ledger", "span_summary", "odd"}

    forward, backward = Index(), Index()
    for record in records:
        forward.add(record)
    for record in reversed(records):
        backward.add(record)

    assert forward.fields == backward.fields
    assert len(forward.fields) > 100


def test_a_field_that_changes_its_kind_is_kept_and_not_rejected():
    index = Index()
    for value in (1, 2.5, "auto", True, None, [1, "x"]):
        index.add({"event": "step", "number_first": value})
    for value in ("auto", 1, 2.5, False, None, [1, "x"]):
        index.add({"event": "step", "text_first": value})

    assert index.fields["number_first"]["type"] == "double"
    assert index.fields["text_first"]["type"] == "keyword"
    assert not MAPPINGS["date_detection"]
    assert not MAPPINGS["numeric_detection"]
