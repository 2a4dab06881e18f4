"""Integrations: one module for each training framework, which records its trainings by itself."""

from toolkit.telemetry.integrations.reporting_names import add_names

add_names()
