"""Rules of one's own, on the Alerts page: those that are followed, and an editor that tries one before it is kept."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from toolkit.telemetry.diagnostics.policy import RULES
from toolkit.telemetry.diagnostics.rules import Rule, read_rules
from toolkit.telemetry.runs.findings.rule_preview import preview
from toolkit.telemetry.runs.formatting import count, md

from .. import session
from .alert_card import SEVERITIES
from .frame import RunPage
from .own_views import save_settings


def own_rules(page: RunPage) -> None:
    """Show the rules of the project and of the run, and let the project's be changed."""
    kept = page.store.project_settings(page.card.project)
    of_run = _rules_of_run(page)
    rules, problems = read_rules(kept.alerts, "rule")
    # Those of the run win over those of its project.
    total = len({rule.name for rule in (*rules, *of_run)})
    title = f"Your rules ({count(total)})" if total else "Your rules"
    with st.expander(title, key=f"_rules {page.key}"):
        for rule in of_run:
            _shown(rule, "from the run's YAML")
        for rule in rules:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                _shown(rule, "")
                if session.read_only_reason() is None and st.button(
                    "Remove",
                    type="tertiary",
                    key=f"_rule_off {rule.name}",
                    help=f"Remove “{md(rule.name, 60)}”",
                ):
                    left = tuple(one for one in kept.alerts if one.get("name") != rule.name)
                    save_settings(
                        page.store,
                        page.card.project,
                        replace(kept, alerts=left),
                        f"Removed the rule “{rule.name}”.",
                    )
        for problem in problems:
            st.warning(md(problem, 300))
        if session.read_only_reason() is None:
            _editor(page)


def _rules_of_run(page: RunPage) -> tuple[Rule, ...]:
    manifest = page.store.meta(page.key).manifest
    return read_rules(manifest.diagnostics.get(RULES) if manifest is not None else None)[0]


def _shown(rule: Rule, origin: str) -> None:
    _, sign, tone = SEVERITIES[rule.severity]
    lasts = f" for {count(rule.lasts)} records" if rule.lasts > 1 else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
        st.badge(f"{sign} {md(rule.name, 60)}", color=tone)
        st.markdown(f"`{rule.when.replace('`', '')}`{lasts}", width="content")
        if origin:
            st.caption(origin, width="content")


@st.fragment
def _editor(page: RunPage) -> None:
    kept = page.store.project_settings(page.card.project)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        name = st.text_input("Name", key="_rule_name", placeholder="loss too high", max_chars=60, width=180)
        when = st.text_input(
            "When",
            key="_rule_when",
            placeholder="ema(train_loss, 0.98) > 2 * best(train_loss)",
            max_chars=500,
            help="Metrics as logged, + - * /, comparisons, and, or, and functions: docs/formulas.md.",
        )
        lasts = st.number_input("For records", 1, 1_000_000, 1, key="_rule_for", width=110)
        severity = st.selectbox(
            "Severity",
            tuple(SEVERITIES),
            index=1,
            key="_rule_severity",
            format_func=lambda one: SEVERITIES[one][0],
            width=130,
        )
        adds = st.button(
            "Keep for the project", key="_rule_add", disabled=not (name.strip() and when.strip())
        )
    if not when.strip():
        st.caption(
            "A rule is an alert once it holds, in every run of the project: on these pages and in `telemetry doctor`. "
            "`alerts:` in the YAML is followed by the run itself."
        )
        return
    given = {"name": name.strip() or "rule", "when": when, "for": lasts, "severity": severity}
    others = [one for one in kept.alerts if one.get("name") != given["name"]]
    found, problems = read_rules([given], "rule")
    if problems:
        st.warning(md(problems[0].removeprefix("rule[0]."), 300))
        return
    st.caption(md(preview(page.store, page.key, found[0]), 400))
    if adds:
        settings = replace(kept, alerts=(*others, found[0].to_mapping()))
        said = f"The rule “{found[0].name}” is followed from now on."
        save_settings(page.store, page.card.project, settings, said)
