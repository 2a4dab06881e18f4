"""The dashboard: run folders shown in a browser."""
