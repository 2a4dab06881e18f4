"""Integrations: one module for each training framework, which records its trainings by itself."""
