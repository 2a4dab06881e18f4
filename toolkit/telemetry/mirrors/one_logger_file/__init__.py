"""Spans and events as a file in the format of OneLogger's own file exporter."""
