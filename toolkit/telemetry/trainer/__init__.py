"""The small, real LoRA trainer used by run.py and the tests.

Importing this package does not import torch, so that a wrong configuration file is reported without it.
"""
