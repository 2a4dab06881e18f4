"""Tables as Plotly figures: plain mappings, without Streamlit."""
