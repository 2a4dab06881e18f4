"""Runs as one HTML file or as Markdown: a document is built once and written in either form."""
