"""Copies record files into ClickHouse and brings run folders back; training never imports it."""
