"""Severity of each kind of finding and what the run does about it, as configured in YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, SAVE, SAVE_AND_STOP, STOP, Kind
from toolkit.telemetry.diagnostics.finding import CRITICAL, INFO, SEVERITIES

if TYPE_CHECKING:
    from toolkit.telemetry.diagnostics.rules import Rule

OFF: Final = "off"
RULES: Final = "alerts"
"""In the manifest, next to the severities: the rules of the run."""
ACTIONS: Final = (SAVE, STOP, SAVE_AND_STOP)
"""What a run may do on a critical finding."""


class PolicyError(ValueError):
    """An unknown kind, severity or action; the message names it and the valid ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which severity each kind has (`off` silences it), and which action a critical finding triggers.

    Raises:
        PolicyError: an unknown kind, severity or action, or an action for a kind that is not critical.
    """

    severities: Mapping[str, str] = field(default_factory=dict)
    actions: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    """Rules of one's own."""

    def __post_init__(self) -> None:
        for kind, severity in self.severities.items():
            require_kind(f"diagnostics.{str(kind)[:60]}", kind)
            if severity not in (*SEVERITIES, OFF):
                raise PolicyError(
                    f"diagnostics.{kind} is {severity!r:.60}; it must be {', '.join(SEVERITIES)} or {OFF}"
                )
        for kind, action in self.actions.items():
            require_kind(f"on_finding.{str(kind)[:60]}", kind)
            if action not in ACTIONS:
                raise PolicyError(
                    f"on_finding.{kind} is {action!r:.60}; it must be one of {', '.join(ACTIONS)}"
                )
            severity = self.severities.get(kind, self.about(kind).severity)
            if severity != CRITICAL:
                raise PolicyError(
                    f"on_finding.{kind} is {action!r}, but a finding of this kind is {severity!r} and only critical "
                    f"ones trigger actions; add `diagnostics: {{{kind}: critical}}` if you mean it"
                )

    def about(self, kind: str) -> Kind:
        """Return what findings of this kind say.

        Raises:
            PolicyError: it is the kind of a rule that there is not.
        """
        found = CATALOGUE.get(kind) or next((rule.about for rule in self.rules if rule.kind == kind), None)
        if found is None:
            raise PolicyError(f"{kind!r:.80} is the kind of a rule, and `alerts` has none of this name")
        return found

    def severity(self, kind: str, *, usual: str, found: str | None) -> str | None:
        """Return the severity of a `kind`, None if it is off; `found` is the detector's choice, `usual` the default."""
        chosen = self.severities.get(kind)
        if chosen == OFF:
            return None
        # What the detector calls harmless stays harmless: the configured severity is for the real problem.
        if found == INFO:
            return INFO
        return chosen or found or usual


def policy_from(diagnostics: Any, on_finding: Any = None, alerts: Any = None) -> Policy:
    """Return the policy from the `diagnostics:`, `on_finding:` and `alerts:` keys of a YAML.

    Rules of one's own that have mistakes are left out.
    `diagnostics` is true, or a mapping of kinds to a severity or `off`; YAML's booleans `off` and `on` are accepted.

    Raises:
        PolicyError: a kind or value is invalid; the message names it and the valid ones.
    """
    severities = {}
    if isinstance(diagnostics, Mapping):
        for kind, severity in diagnostics.items():
            if severity is True:
                require_kind(f"diagnostics.{str(kind)[:60]}", kind)
            else:
                severities[kind] = OFF if severity is False else severity
    elif not isinstance(diagnostics, bool):
        raise PolicyError(
            f"diagnostics is {diagnostics!r:.60}; it must be true, false, or kinds with their severity, "
            f"such as {{plateau: off}}"
        )
    if on_finding is not None and not isinstance(on_finding, Mapping):
        raise PolicyError(
            f"on_finding is {on_finding!r:.60}; it must be kinds with an action, such as {{nan: stop}}"
        )
    actions = {}
    for kind, action in (on_finding or {}).items():
        if action is False:
            require_kind(f"on_finding.{str(kind)[:60]}", kind)
        else:
            actions[kind] = action
    return Policy(severities=severities, actions=actions, rules=_rules(alerts))


def policy_of_run(diagnostics: Mapping[str, Any], alerts: Sequence[Any] = ()) -> Policy:
    """Return the policy in a run's manifest, with the rules of its project; entries of later versions are ignored."""
    own = diagnostics.get(RULES)
    return Policy(
        # A rule of the run wins over the project's of the same name.
        rules=_rules([*(own if isinstance(own, list) else ()), *alerts]),
        severities={
            kind: severity
            for kind, severity in diagnostics.items()
            if _is_kind(kind) and isinstance(severity, str) and severity in (*SEVERITIES, OFF)
        },
    )


def in_manifest(policy: Policy) -> dict[str, Any]:
    """Return what run.json says about the policy of a live run."""
    rules = {RULES: [rule.to_mapping() for rule in policy.rules]} if policy.rules else {}
    return {**policy.severities, **rules}


def _rules(value: Any) -> tuple[Rule, ...]:
    if not value:
        return ()
    # Imported only where there are rules, so that other runs start faster.
    from toolkit.telemetry.diagnostics.rules import read_rules

    return read_rules(value)[0]


def _is_kind(name: str) -> bool:
    if name in CATALOGUE:
        return True
    # Imported when used: a run that names no kind needs nothing of plug-ins to start.
    from toolkit.telemetry.diagnostics.plugins import is_kind

    return is_kind(name)


def require_kind(where: str, kind: Any) -> None:
    """Raise PolicyError unless `kind` is a kind of finding; `where` names the key in the message."""
    if not isinstance(kind, str) or not _is_kind(kind):
        close = difflib.get_close_matches(str(kind), CATALOGUE, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise PolicyError(
            f"{where}: {kind!r:.60} is not a kind of finding{hint} Known: {', '.join(CATALOGUE)}"
        )
