"""Plotly figures as plain mappings, without Streamlit."""
