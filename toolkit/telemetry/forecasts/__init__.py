"""Forecasts of live runs, each with its 90 % interval: where a loss will end."""
