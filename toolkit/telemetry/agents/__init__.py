"""Answers for agents over MCP: each fits a budget of tokens, numbers have sources, and text of runs is fenced."""
