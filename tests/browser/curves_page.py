"""A page with charts of curves and nothing else, for test_curves.py."""

import streamlit as st

from dashboard import session
from dashboard.assets import page_style
from dashboard.components.curve_chart import ChartSpec, CurveSpec, Mark, draw_curves, view_switches

st.set_page_config(layout="wide")
st.html(f"<style>{page_style()}</style>")
run = st.query_params.get("run", "spiky")
# As every page does before its charts.
session.store().refresh(run, wait_s=5.0)
view_switches(axes=[("step", "Step"), ("time", "Time"), ("elapsed", "Elapsed")])
st.subheader("train_loss")
draw_curves(
    ChartSpec(
        title="train_loss",
        curves=(CurveSpec(run=run, metric="train_loss", label="train_loss"),),
        fit=True,
        marks=(Mark(text="session 2", step=1800, time=1_700_001_000.0),),
    ),
    key="first",
)
st.subheader("two")
draw_curves(
    ChartSpec(
        title="two",
        curves=(
            CurveSpec(run=run, metric="train_loss", label="train_loss"),
            CurveSpec(run=run, metric="grad_norm", label="grad_norm", colour=1),
        ),
        legend=True,
    ),
    key="second",
)
