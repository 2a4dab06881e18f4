"""Rules of one's own: a formula that must not hold, read from `alerts:` of a YAML or from a project's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from toolkit.telemetry.core.checks import Check, OptionsError, one_of, shown, unknown, where, whole, wrong
from toolkit.telemetry.diagnostics.catalogue import RULE, Kind
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import SEVERITIES, WARNING
from toolkit.telemetry.diagnostics.incident import Incidents
from toolkit.telemetry.diagnostics.metric_aliases import Row
from toolkit.telemetry.formulas.evaluation import Evaluation, Setting
from toolkit.telemetry.formulas.formula import COMPARES, MAX_LENGTH, Call, Formula, FormulaError, parse
from toolkit.telemetry.formulas.functions import TAKES_MISSING
from toolkit.telemetry.runfolder.key_values import USUAL_NAMES, configured
from toolkit.telemetry.runfolder.metrics import CARRIES_METRICS, EPOCH_PREFIX, NOT_METRICS, as_float
from toolkit.telemetry.runfolder.records import EPOCH, START, Record
from toolkit.telemetry.runfolder.untrusted import clean

MOST_RULES: Final = 50
_MOST_PROBLEMS: Final = 5
_MOST_READ: Final = 10 * MOST_RULES
"""Of a longer list no more is looked at: the run starts meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule: it is broken once `when` holds for `lasts` records that have one of its metrics."""

    name: str
    when: str
    lasts: int = 1
    severity: str = WARNING
    message: str = ""

    @property
    def kind(self) -> str:
        """The kind of its findings."""
        return RULE + self.name

    @cached_property
    def formula(self) -> Formula:
        """What must not hold."""
        return parse(self.when)

    @property
    def compares(self) -> bool:
        """Whether it is one comparison, and not several joined."""
        return isinstance(self.formula.root, Call) and self.formula.root.function in COMPARES

    @cached_property
    def about(self) -> Kind:
        """What its findings say."""
        # Its braces are braces, and no names of values.
        said = (self.message or f"{self.when} holds").replace("{", "{{").replace("}", "}}")
        values = ": {value} against {limit} at step {noticed}" if self.compares else ""
        end = "" if said.endswith((".", "!", "?")) else "."
        message = f"{said}{end} Since step {{start}}, {{count}} records{values}."
        return Kind(title=self.name, severity=self.severity, message=message)

    def to_mapping(self) -> dict[str, Any]:
        """Return the rule as a YAML has it."""
        return {
            "name": self.name,
            "when": self.when,
            **({"for": self.lasts} if self.lasts > 1 else {}),
            "severity": self.severity,
            **({"message": self.message} if self.message else {}),
        }


def read_rules(value: Any, key: str = "alerts") -> tuple[tuple[Rule, ...], list[str]]:
    """Return the valid rules in `value`, and for each other one a sentence that says what is wrong with it."""
    if not isinstance(value, (list, tuple)):
        allowed = "a list of rules, such as [{name: too high, when: loss > 10}]"
        return (), [] if value is None else [str(wrong(key, value, allowed))]
    rules: dict[str, Rule] = {}
    problems: list[str] = []
    for place, one in enumerate(value):
        at = f"{key}[{place}]"
        if len(rules) == MOST_RULES or place == _MOST_READ:
            problems.insert(0, f"{at} and what follows are too many; at most {MOST_RULES} rules are allowed")
            break
        try:
            rule = _rule(one, at)
            if rule.name in rules:
                raise OptionsError(f"{at}.name is {rule.name!r}, which is the name of another rule")
            rules[rule.name] = rule
        except OptionsError as error:
            problems.append(str(error))
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"{key} has {len(problems) - _MOST_PROBLEMS} more mistakes"]
    return tuple(rules.values()), problems


def _line(text: str) -> str:
    """Return a text of several lines as one, as YAML folds it."""
    return " ".join(text.splitlines()).replace("\t", " ").strip()


def _text(most: int, what: str = "a text") -> Check[str]:
    def fits(value: Any) -> bool:
        # What cannot be shown, such as control characters, would reach the terminal with each finding.
        return isinstance(value, str) and 0 < len(_line(value)) <= most and _line(value).isprintable()

    return where(fits, f"{what} of 1 to {most} characters")


_CHECKS: Final[Mapping[str, Check[Any]]] = {
    "name": _text(60),
    "when": _text(MAX_LENGTH, "a formula such as 'loss > 10',"),
    "for": whole(1, 1_000_000),
    "severity": one_of(*SEVERITIES),
    "message": _text(300),
}


def _rule(one: Any, at: str) -> Rule:
    if not isinstance(one, Mapping):
        raise wrong(at, one, f"a mapping of {', '.join(_CHECKS)}")
    given: dict[str, Any] = {"name": None, "when": None}
    for key, value in one.items():
        if key not in _CHECKS:
            raise unknown(f"{at}.{clean(str(key)[:60])}", value, _CHECKS)
        given[key] = value
    read = {
        key: _CHECKS[key](f"{at}.{key}", value)
        for key, value in given.items()
        if value is not None or key in ("name", "when")
    }
    rule = Rule(
        name=_line(read["name"]),
        when=_line(read["when"]),
        lasts=read.get("for", 1),
        severity=read.get("severity", WARNING),
        message=_line(read.get("message", "")),
    )
    try:
        root = rule.formula.root
    except FormulaError as error:
        raise OptionsError(f"{at}.when is {shown(rule.when)}: {str(error).rstrip('.')}") from None
    decides = isinstance(root, Call) and root.function in (*COMPARES, *TAKES_MISSING)
    if not rule.formula.names or not decides:
        raise wrong(f"{at}.when", rule.when, "a comparison of a metric, such as 'loss > 10'")
    return rule


class OwnRule(SingleIncidentDetector):
    """Reports that a rule is broken, from the record on at which its formula began to hold."""

    signals: tuple[str, ...] = ("*",)

    def __init__(self, incidents: Incidents, rule: Rule) -> None:
        super().__init__(incidents)
        self.kind = rule.kind
        self._rule = rule
        self._names = rule.formula.names
        self._fields = [(name, name) for name in self._names if name not in NOT_METRICS]
        self._fields_of_epochs = [
            (name, field)
            for name in self._names
            if (field := name.removeprefix(EPOCH_PREFIX)) != name and field not in NOT_METRICS
        ]
        self._needs_epoch = "epoch" in rule.formula.all_of("place")
        self._epoch = math.nan
        self._settings = rule.formula.all_of("setting")
        # One with settings begins once they are known.
        self._formula = None if self._settings else Evaluation(rule.formula)
        self._session = incidents.session
        self._held = 0
        self._since = 0

    def restart(self, step: int) -> None:
        """Resolve the open incident; a curve goes on where it was."""
        self._resolve(step)
        self._held = 0
        # Steps that go back within a session begin another incident, but no other curve.
        if self._formula is not None and self._session != self._incidents.session:
            self._formula.restart()
        self._session = self._incidents.session

    def take(self, row: Row) -> None:
        """Look at one record."""
        if row.event == START:
            self._read_settings(row.record)
        elif row.event in CARRIES_METRICS or not row.event:
            holds = self._holds(row)
            if holds is not None:
                self._decide(row.step, holds=holds)

    def _holds(self, row: Row) -> bool | None:
        """Return whether the formula holds at this record; None if it has no value there."""
        record = row.record
        if self._needs_epoch:
            # As in the columns of a page, a record without an epoch is in the one before.
            epoch = as_float(record.get("epoch"))
            self._epoch = epoch if math.isfinite(epoch) else self._epoch
        fields = self._fields_of_epochs if row.event == EPOCH else self._fields
        metrics = {
            name: ([0], [as_float(record[field])])
            for name, field in fields
            if isinstance(record.get(field), (int, float))
        }
        if self._formula is None or not metrics:
            return None
        known = {"step": float(row.step), "epoch": self._epoch}

        def places(name: str, rows: list[int]) -> list[float]:
            return [known[name] if name in known else as_float(record.get(name)) for _ in rows]

        _, values = self._formula.take(metrics, places)
        return bool(values[0]) if values else None

    def _decide(self, step: int, *, holds: bool) -> None:
        if not holds:
            self._held = 0
            self._resolve(step)
            return
        self._held += 1
        if self._held == 1:
            self._since = step
        if self._incident is not None:
            self._incident.grow(step)
        elif self._held >= self._rule.lasts:
            known = {}
            if self._rule.compares and self._formula is not None:
                known = dict(zip(("value", "limit"), self._formula.sides(0), strict=True))
            self._incident = self._incidents.open(
                self.kind,
                self._names[0],
                start_step=self._since,
                noticed_step=step,
                count=self._held,
                **{name: value for name, value in known.items() if math.isfinite(value)},
            )

    def _read_settings(self, start: Record) -> None:
        if not self._settings:
            return
        setting = _settings_in(start)
        if self._formula is not None:
            self._formula.use_settings(setting)
            return
        try:
            self._formula = Evaluation(self._rule.formula, setting)
        except FormulaError:
            # Without the setting there is nothing to compare with; the page of the rule says so.
            return


def _settings_in(start: Record) -> Setting:
    known = configured(start)

    def setting(name: str) -> float | None:
        usual = USUAL_NAMES.get(name.lower(), name)
        ends = (key for key in known if key.endswith((f".{name}", f".{usual}")))
        value = next((known[key] for key in (name, usual, *ends) if key in known), None)
        try:
            return None if value is None else float(value)
        except ValueError:
            return None

    return setting
