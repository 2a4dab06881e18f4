"""How often forecasts are right, on curves whose end is known."""
