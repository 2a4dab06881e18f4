"""Asks the MCP server questions with known answers, checks the source of every number, and tries to instruct it."""
