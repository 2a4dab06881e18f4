"""A page that fails."""

import streamlit as st

st.write("it began")
raise RuntimeError("/home/someone/secret")
