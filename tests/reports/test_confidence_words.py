from __future__ import annotations

import pytest

from toolkit.telemetry.diagnostics.confidence import USUAL
from toolkit.telemetry.diagnostics.confidence_table import KINDS, RUNS, STRENGTHS
from toolkit.telemetry.reports.finding_text import basis_text, sure_text


def test_a_share_is_given_with_its_counts():
    share, right, of, unsure = STRENGTHS[USUAL]

    assert sure_text("overfit", share) == f"{100 * share:.0f} % sure"
    assert basis_text("overfit", share) == (
        f"On {RUNS} labelled runs {right} of {of} findings with evidence as strong as this were right, "
        f"without {unsure} where a person was unsure, too; "
        "of this kind {} of {}.".format(*KINDS["overfit"])
    )


def test_a_kind_without_labelled_examples_is_not_calibrated():
    assert sure_text("stalled", None) == "not calibrated"
    assert basis_text("stalled", None).endswith("no labelled run has one.")


@pytest.mark.parametrize("kind", ["overfit", "of a later version"])
def test_a_share_of_another_version_has_no_counts(kind):
    assert sure_text(kind, 0.715) == "72 % sure"
    assert basis_text(kind, 0.715) == "The share of such findings that were right on labelled runs."
