"""Spans and events to an OpenTelemetry collector."""
